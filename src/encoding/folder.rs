//! The encoder in a model folder, to be compiled and not run.

use super::protocol::ItemEncoder;
use super::text::{LoadError, TextModel};
use super::vision::VisionModel;
use crate::assembly::Assembly;
use crate::device::DeviceSpec;
use crate::models::encoder::{
    ImageProcessor, Modality, TextEncoderConfig, TextOutput, VisionConfig,
};
use crate::models::{Checkpoint, ConfigError};
use piecewise_runtime::config::ConfigLayers;
use std::path::Path;

/// Tokens of a step, at least, where nobody says how many.
const LEAST: u64 = 512;
/// The most of texts, however long they may be.
const MOST_OF_TEXTS: u64 = 8192;
/// The most of images on a GPU, and on the CPU, where the programs of all budgets, which run once at
/// the start, would take minutes.
const MOST_OF_IMAGES: [u64; 2] = [4096, 1024];

/// Tokens that a step of the encoder in `folder`, or of the tower in it, has room for where nobody
/// says how many: those of the longest text, or of the largest image that its processor makes, up to
/// a bound. It does not depend on the items at hand, so that what is compiled ahead is what a
/// run looks for.
///
/// # Errors
/// When its configuration can't be read.
pub fn default_tokens(folder: &Path, device: DeviceSpec) -> Result<u64, ConfigError> {
    if Modality::of(folder)? == Modality::Text {
        let longest = TextEncoderConfig::load(folder)?.longest() as u64;
        return Ok(longest.clamp(LEAST, MOST_OF_TEXTS));
    }
    if let Some(tokens) = VisionConfig::load(folder)?.fixed_tokens() {
        return Ok(tokens.max(LEAST));
    }
    let [on_gpu, on_cpu] = MOST_OF_IMAGES;
    let most = if device.resolve().0 == DeviceSpec::Cpu { on_cpu } else { on_gpu };
    // Who brings tensors needs no processor.
    let largest = ImageProcessor::load(folder).map_or(most, |processor| processor.most_tokens());
    Ok(largest.clamp(LEAST, most))
}

/// The encoder in `folder` as one that is loaded has it: of texts with embeddings, of a
/// cross-encoder with scores, of images with all that the tower gives.
///
/// # Errors
/// As for [`TextEncoder::load`](super::TextEncoder) and [`VisionEncoder::load`](super::VisionEncoder).
pub fn folder_assembly(folder: &Path, layers: ConfigLayers) -> Result<Assembly, LoadError> {
    match Modality::of(folder)? {
        Modality::Vision => {
            let (model, path) = VisionModel::read(folder, layers)?;
            Ok(path.budgeted(model.range(0))?)
        }
        Modality::Text => of_texts(folder, layers, &[text_output(folder)?]),
    }
}

fn of_texts(
    folder: &Path,
    layers: ConfigLayers,
    outputs: &[TextOutput],
) -> Result<Assembly, LoadError> {
    let (model, path) = TextModel::read(folder, layers, outputs)?;
    Ok(path.budgeted(model.range(0))?)
}

/// What is made of the encoder in `folder` beside [`folder_assembly`], by the command that makes it: of
/// texts `encode` gives all outputs at once, and `embed` embeddings of a cross-encoder, too.
///
/// # Errors
/// As for [`folder_assembly`].
pub fn other_assemblies(
    folder: &Path,
    layers: &ConfigLayers,
) -> Result<Vec<(&'static str, Assembly)>, LoadError> {
    if Modality::of(folder)? == Modality::Vision {
        return Ok(Vec::new());
    }
    let all = TextEncoderConfig::load(folder)?.outputs(&Checkpoint::open(folder)?);
    let own = [text_output(folder)?];
    let others = [("embed", vec![TextOutput::Embedding]), ("encode", all)];
    let others = others.into_iter().filter(|(_, outputs)| *outputs != own);
    others.map(|(name, outputs)| Ok((name, of_texts(folder, layers.clone(), &outputs)?))).collect()
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
