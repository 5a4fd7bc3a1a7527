//! What a decoder is, and how the fields of a `config.json` of a Hugging Face model folder are read.
//!
//! Which fields a family has, and what they mean where they are not stated, is in
//! `src/models/families`.

mod error;
mod experts;
mod family;
pub(in crate::models) mod fields;
mod layers;
pub(in crate::models) mod options;
pub(in crate::models) mod quantization;
pub(in crate::models) mod rope;
pub(in crate::models) mod vision_language;
pub(in crate::models) mod wrappers;

use std::path::Path;

use serde_json::Value;

pub use self::error::ConfigError;
pub use self::experts::ExpertsConfig;
pub use self::family::Family;
use self::fields::Fields;
pub use self::layers::{Activation, LayerAttention, LayerRope, Multipliers};
pub use self::quantization::Quantization;
pub use self::rope::{RopeConfig, RopeScaling, RopeTable};
use super::dtype_names;
use super::files::{ReadError, read_bounded};
use piecewise_ir::dtype::DType;

/// A decoder-only transformer: RMS norms, a gated feed-forward, rotary positions, grouped-query causal
/// attention over the whole context or, in some layers, over a window.
///
/// Every number is validated: none is zero, products of any few of them fit in 64 bits, and the
/// weights that they describe number at most 2^42.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecoderConfig {
    /// The architecture whose layers the other fields size.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward's gate and up projections.
    pub intermediate_size: usize,
    /// Layers, each of attention and an MLP, between the embedding and the head.
    pub num_layers: usize,
    /// Number of query heads, a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Number of key and value heads.
    pub num_kv_heads: usize,
    /// Width of a head, even; `num_heads * head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    /// Number of rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f64,
    /// Whether the head is the embedding (`model.embed_tokens.weight`), not `lm_head.weight`.
    pub tie_word_embeddings: bool,
    /// Positions that the model was made for: the longest sequence, prompt and reply together.
    pub max_position_embeddings: usize,
    /// How each layer attends; a layer past its end sees all, and is turned by [`Self::rope`].
    pub attention: Vec<LayerAttention>,
    /// What scores are multiplied by, where it is not `1 / sqrt(head_dim)`.
    pub score_scale: Option<f64>,
    /// Scores become `cap * tanh(score / cap)` before the softmax.
    pub score_softcap: Option<f64>,
    /// As scores, the logits.
    pub logit_softcap: Option<f64>,
    /// What the gate of a feed-forward goes through.
    pub activation: Activation,
    /// What parts of the model are multiplied by.
    pub multipliers: Multipliers,
    /// The type that activations and weights are meant to have (`f32`, `f16` or `bf16`), where the
    /// configuration states it. Each tensor of the checkpoint states its own.
    pub dtype: Option<DType>,
    /// The id that begins a text, where there is one.
    pub bos_token_id: Option<u32>,
    /// The ids that end a text, each below `vocab_size`; may be empty.
    pub eos_token_ids: Vec<u32>,
    /// Base and scaling of the rotary positions.
    pub rope: RopeConfig,
    /// That of layers with a window, where it is another one.
    pub sliding_rope: Option<RopeConfig>,
    /// Of a model that reads images: how many pairs of a head turn by frame, by row and by column.
    pub rope_sections: Option<[usize; 3]>,
    /// Whether q and k are normalized per head (`q_norm.weight`, `k_norm.weight`: `[head_dim]`).
    pub qk_norm: bool,
    /// Whether `q_proj`, `k_proj` and `v_proj` have a `bias`.
    pub qkv_bias: bool,
    /// Whether `o_proj` has a `bias`.
    pub output_bias: bool,
    /// Whether `gate_proj`, `up_proj` and `down_proj` have a `bias`.
    pub mlp_bias: bool,
    /// The experts of sparse layers, where there are such.
    pub experts: Option<ExpertsConfig>,
    /// How linear layers are kept that are not in the dtype of their own.
    pub quantization: Option<Quantization>,
    /// Keys of the file that are neither read nor known to be without effect; see [`Self::parse`].
    pub ignored_keys: Vec<String>,
    /// What the names of tensors begin with that a decoder of text has no use for.
    pub(in crate::models) towers: &'static [&'static str],
}

/// Bytes that a configuration file may have.
const LARGEST_FILE: u64 = 4 << 20;

impl DecoderConfig {
    /// Takes `bos_token_id` and `eos_token_id` from the text of a `generation_config.json`, where
    /// it states them; `file` is only named in errors.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field; the configuration is then unchanged.
    pub fn apply_generation_config(&mut self, text: &[u8], file: &Path) -> Result<(), ConfigError> {
        let value = parse_json(text, file)?;
        let root = Fields::root(file, &value)?;
        let bos = read_bos(&root, self.vocab_size)?;
        let eos = read_eos(&root, self.vocab_size)?;
        self.bos_token_id = bos.or(self.bos_token_id);
        if let Some(ids) = eos {
            self.eos_token_ids = ids;
        }
        Ok(())
    }

    /// How a layer attends.
    pub fn attention_of(&self, layer: usize) -> LayerAttention {
        self.attention.get(layer).copied().unwrap_or_default()
    }

    /// The experts of a layer; `None` of one that has a feed-forward for all tokens.
    pub fn experts_of(&self, layer: usize) -> Option<&ExpertsConfig> {
        let is_sparse = |of: &&ExpertsConfig| of.dense_layers.binary_search(&layer).is_err();
        self.experts.as_ref().filter(is_sparse)
    }

    /// What scores are multiplied by.
    pub fn score_scale(&self) -> f64 {
        self.score_scale.unwrap_or_else(|| (self.head_dim as f64).powf(-0.5))
    }

    /// Number of weights of the whole model, norms and biases left out; saturating.
    pub fn num_weights(&self) -> usize {
        let heads = self.num_heads.saturating_add(self.num_kv_heads);
        let attention = heads.saturating_mul(self.head_dim).saturating_mul(2);
        let of_layer = |layer| match self.experts_of(layer) {
            None => self.intermediate_size.saturating_mul(3),
            // Each has a row of the router.
            Some(experts) => experts
                .intermediate_size
                .saturating_mul(3)
                .saturating_add(1)
                .saturating_mul(experts.count),
        };
        let layers = (0..self.num_layers).fold(0usize, |sum, layer| {
            let width = attention.saturating_add(of_layer(layer));
            sum.saturating_add(width.saturating_mul(self.hidden_size))
        });
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        let embeddings = self.vocab_size.saturating_mul(self.hidden_size).saturating_mul(tables);
        layers.saturating_add(embeddings)
    }
}

pub(in crate::models) fn read(file: &Path) -> Result<Vec<u8>, ConfigError> {
    read_bounded(file, LARGEST_FILE).map_err(|error| match error {
        ReadError::Io(source) => ConfigError::Io { file: file.to_path_buf(), source },
        ReadError::TooLarge { bytes } => {
            ConfigError::TooLarge { file: file.to_path_buf(), bytes, limit: LARGEST_FILE }
        }
    })
}

pub(in crate::models) fn parse_json(text: &[u8], file: &Path) -> Result<Value, ConfigError> {
    serde_json::from_slice(text)
        .map_err(|source| ConfigError::Json { file: file.to_path_buf(), source })
}

pub(in crate::models) fn read_dtype(root: &Fields<'_>) -> Result<Option<DType>, ConfigError> {
    let parse = |key| match root.string(key)? {
        None => Ok(None),
        Some(name) => dtype_names::from_torch(name)
            .map(Some)
            .ok_or_else(|| root.unsupported(key, "use float32, float16 or bfloat16")),
    };
    match (parse("dtype")?, parse("torch_dtype")?) {
        (Some(newer), Some(older)) if newer != older => {
            Err(root.conflict("dtype", root, "torch_dtype"))
        }
        (newer, older) => Ok(newer.or(older)),
    }
}

pub(in crate::models) fn read_bos(
    root: &Fields<'_>,
    vocab_size: usize,
) -> Result<Option<u32>, ConfigError> {
    match root.token_ids("bos_token_id", vocab_size)?.as_deref() {
        None | Some([]) => Ok(None),
        Some([id]) => Ok(Some(*id)),
        Some(_) => Err(root.bad_value("bos_token_id", "a text begins with one token")),
    }
}

/// The ids that end a text by `generation_config.json` of `folder`, where it has some.
pub(in crate::models) fn eos_of_generation(
    folder: &Path,
    vocab_size: usize,
) -> Result<Option<Vec<u32>>, ConfigError> {
    let file = folder.join("generation_config.json");
    if !file.exists() {
        return Ok(None);
    }
    let value = parse_json(&read(&file)?, &file)?;
    read_eos(&Fields::root(&file, &value)?, vocab_size)
}

pub(in crate::models) fn read_eos(
    root: &Fields<'_>,
    vocab_size: usize,
) -> Result<Option<Vec<u32>>, ConfigError> {
    root.token_ids("eos_token_id", vocab_size)
}

#[cfg(test)]
mod families_tests;
#[cfg(test)]
mod tests;
