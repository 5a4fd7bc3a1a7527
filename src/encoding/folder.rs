//! The encoder in a model folder, to be compiled and not run.

use super::protocol::ItemEncoder;
use super::text::{LoadError, TextModel};
use super::vision::VisionModel;
use crate::assembly::Assembly;
use crate::models::Checkpoint;
use crate::models::encoder::{Modality, TextEncoderConfig, TextOutput};
use piecewise_runtime::config::ConfigLayers;
use std::path::Path;

/// The encoder in `folder` as one that is loaded has it: of texts with embeddings, of a
/// cross-encoder with scores, of images with all that the tower gives.
///
/// # Errors
/// As for [`TextEncoder::load`](super::TextEncoder) and [`VisionEncoder::load`](super::VisionEncoder).
pub fn folder_assembly(folder: &Path, layers: ConfigLayers) -> Result<Assembly, LoadError> {
    let (path, range) = match Modality::of(folder)? {
        Modality::Vision => {
            let (model, path) = VisionModel::read(folder, layers)?;
            (path, model.range(0))
        }
        Modality::Text => {
            let output = text_output(folder)?;
            let (model, path) = TextModel::read(folder, layers, &[output])?;
            (path, model.range(0))
        }
    };
    Ok(path.budgeted(range)?)
}

/// What the encoder of texts in `folder` is for: scores where it has a head for them, and embeddings
/// otherwise.
///
/// # Errors
/// When its configuration or its weights can't be read.
pub fn text_output(folder: &Path) -> Result<TextOutput, LoadError> {
    let config = TextEncoderConfig::load(folder)?;
    let outputs = config.outputs(&Checkpoint::open(folder)?);
    Ok(match outputs.contains(&TextOutput::Scores) {
        true => TextOutput::Scores,
        false => TextOutput::Embedding,
    })
}
