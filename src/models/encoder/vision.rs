//! Encoders of images: from patches to rows.

use super::super::checkpoint::Checkpoint;
use super::super::config::fields::Fields;
use super::super::config::{ConfigError, parse_json, read};
use super::inputs::{EncoderBounds, PackedRows};
use super::qwen_vl::{self, QwenVlConfig, QwenVlKind};
use super::siglip::{self, SiglipConfig};
use super::text::{EncoderError, stored_dtypes};
use piecewise_ir::builder::Builder;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use std::path::Path;

/// A vision tower, alone or inside a checkpoint of a larger model.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum VisionConfig {
    /// `siglip_vision_model`, or the `vision_config` of a `siglip`.
    Siglip(SiglipConfig),
    /// `qwen2_5_vl_vision` and `qwen3_vl_vision`, or the `vision_config` of a `qwen2_5_vl` or a
    /// `qwen3_vl`.
    QwenVl(QwenVlConfig),
}

/// How many rows an output has, and how wide they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisionOutput {
    /// One row for each item, or as many as the item has.
    pub per_item: bool,
    /// Elements of a row.
    pub width: usize,
}

impl VisionConfig {
    /// Reads `config.json` of `folder`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let file = folder.join("config.json");
        Self::parse(&read(&file)?, &file)
    }

    /// Reads the text of a `config.json`; `file` is only named in errors.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        let value = parse_json(text, file)?;
        let root = Fields::root(file, &value)?;
        let tower = root.child("vision_config")?;
        let fields = tower.as_ref().unwrap_or(&root);
        match root.string("model_type")? {
            Some("siglip_vision_model" | "siglip") => Ok(Self::Siglip(SiglipConfig::read(fields)?)),
            Some("qwen2_5_vl_vision" | "qwen2_5_vl") => {
                Ok(Self::QwenVl(QwenVlConfig::read(fields, false)?))
            }
            Some("qwen3_vl_vision" | "qwen3_vl") => {
                Ok(Self::QwenVl(QwenVlConfig::read(fields, true)?))
            }
            Some(_) => {
                let supported = "vision towers are those of siglip, qwen2_5_vl and qwen3_vl";
                Err(root.unsupported("model_type", supported))
            }
            None => Err(root.missing("model_type")),
        }
    }

    /// What the configuration says that weights are stored as.
    pub fn stored_dtype(&self) -> Option<DType> {
        match self {
            Self::Siglip(config) => config.dtype,
            Self::QwenVl(config) => config.dtype,
        }
    }

    /// What the graph returns, in its order: of a SigLIP its rows and its head; of a Qwen the
    /// merged tokens, then each deepstack output.
    pub fn outputs(&self) -> Vec<VisionOutput> {
        match self {
            Self::Siglip(SiglipConfig { hidden_size: width, .. }) => {
                [false, true].map(|per_item| VisionOutput { per_item, width: *width }).to_vec()
            }
            Self::QwenVl(config) => {
                let deepstack = match &config.kind {
                    QwenVlKind::Qwen25 { .. } => 0,
                    QwenVlKind::Qwen3 { deepstack, .. } => deepstack.len(),
                };
                vec![VisionOutput { per_item: false, width: config.out_hidden_size }; 1 + deepstack]
            }
        }
    }

    /// The graph of the tower over the tensors of `checkpoint`, with outputs in f32.
    ///
    /// # Errors
    /// When it does not fit its own configuration.
    pub fn graph(
        &self,
        checkpoint: &Checkpoint,
        activations: DType,
        bounds: &EncoderBounds,
    ) -> Result<Graph, EncoderError> {
        let b = Builder::new("vision_encoder")
            .weight_dtype(self.stored_dtype().unwrap_or(DType::F32))
            .weight_dtypes(stored_dtypes(checkpoint));
        let prefix = self.prefix(checkpoint);
        let outputs = match self {
            Self::Siglip(config) => {
                let packed = PackedRows::declare(&b, bounds);
                siglip::rows_and_pooled(&b, config, activations, &packed, prefix).to_vec()
            }
            Self::QwenVl(config) => qwen_vl::merged_rows(&b, config, activations, bounds, prefix),
        };
        Ok(b.finish(outputs.into_iter().map(|output| output.cast(DType::F32)))?)
    }

    /// What stands before the names of the tower's tensors in `checkpoint`.
    fn prefix(&self, checkpoint: &Checkpoint) -> &'static str {
        let (prefixes, probe): (&[&'static str], _) = match self {
            Self::Siglip(_) => (
                &["vision_model", "vision_tower.vision_model", "model.vision_tower.vision_model"],
                "embeddings.patch_embedding.weight",
            ),
            Self::QwenVl(_) => (&["visual", "model.visual"], "patch_embed.proj.weight"),
        };
        let has = |prefix: &&&str| checkpoint.dtype_of(&format!("{prefix}.{probe}")).is_some();
        prefixes.iter().find(has).copied().unwrap_or_default()
    }
}
