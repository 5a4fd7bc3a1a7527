//! What the encoder in a folder reads.

use super::super::config::fields::Fields;
use super::super::config::{ConfigError, parse_json, read};
use super::vision::VisionConfig;
use std::path::Path;

/// What the items of an encoder are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Modality {
    /// Token ids.
    Text,
    /// Patches of images.
    Vision,
}

impl Modality {
    /// By the `model_type` of the folder's `config.json`, or of its `vision_config`; text where
    /// neither is of a vision tower, known or not.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn of(folder: &Path) -> Result<Self, ConfigError> {
        let file = folder.join("config.json");
        let value = parse_json(&read(&file)?, &file)?;
        let is_vision = VisionConfig::is_in(&Fields::root(&file, &value)?)?;
        Ok(if is_vision { Self::Vision } else { Self::Text })
    }
}

/// Whether `folder` is of an encoder alone, and not of a decoder that writes text: by the
/// `model_type` of its `config.json`; a `qwen3`, which may be either, where its `architectures` name
/// no head, or sentence-transformers' `modules.json` lies beside.
///
/// # Errors
/// A [`ConfigError`] that names the file and the field.
pub fn is_encoder(folder: &Path) -> Result<bool, ConfigError> {
    let file = folder.join("config.json");
    let value = parse_json(&read(&file)?, &file)?;
    let root = Fields::root(&file, &value)?;
    Ok(match root.string("model_type")? {
        Some("bert" | "xlm-roberta" | "roberta" | "modernbert") => true,
        Some("qwen3") => {
            let architectures = root.strings("architectures")?.unwrap_or_default();
            architectures.contains(&"Qwen3Model") || folder.join("modules.json").exists()
        }
        // These have a decoder beside the tower.
        Some("qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe") => false,
        Some(other) => VisionConfig::is_tower(other),
        None => false,
    })
}
