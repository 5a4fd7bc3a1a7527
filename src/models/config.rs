//! What a decoder is, read from the `config.json` of a Hugging Face model folder.
//!
//! Four architectures are known: Qwen3, Qwen2 (that of Qwen2.5-VL too), Llama and Mistral. A configuration that asks for
//! anything that they do not compute here is an error that names the field; defaults are those of
//! each architecture in transformers.

mod error;
mod family;
pub(in crate::models) mod fields;
pub(in crate::models) mod options;
pub(in crate::models) mod quantization;
mod rope;
pub(in crate::models) mod vision_language;

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::Value;

pub use self::error::ConfigError;
pub use self::family::Family;
use self::fields::Fields;
pub use self::quantization::Quantization;
use self::rope::POSITIONS;
pub use self::rope::{RopeConfig, RopeScaling};
use super::dtype_names;
use super::files::{ReadError, read_bounded};
use piecewise_ir::dtype::DType;

impl Family {
    fn read(root: &Fields<'_>, part: Part) -> Result<Self, ConfigError> {
        let known = |key, is_named: &dyn Fn(&Self) -> bool| {
            Self::ALL.into_iter().find(is_named).ok_or_else(|| {
                let names = Self::ALL.map(Self::architecture).join(", ");
                root.unsupported(key, format!("the architectures are {names}"))
            })
        };
        let by_type = root.string("model_type")?;
        let by_type = by_type
            .map(|name| known("model_type", &|family| family.model_type() == name))
            .transpose()?;
        let by_architecture = match root.strings("architectures")?.as_deref() {
            None | Some([]) => None,
            Some([name]) => Some(known("architectures", &|family| {
                family.architecture() == *name || part.is_trunk(*family, name)
            })?),
            Some(_) => return Err(root.unsupported("architectures", "one architecture is")),
        };
        match (by_type, by_architecture) {
            (Some(one), Some(other)) if one != other => {
                Err(root.conflict("model_type", root, "architectures"))
            }
            (Some(family), _) | (None, Some(family)) => Ok(family),
            (None, None) => Err(root.missing("architectures")),
        }
    }

    /// `max_position_embeddings` where a configuration states none.
    fn default_positions(self) -> usize {
        match self {
            Self::Qwen3 | Self::Qwen2 => 32_768,
            Self::Llama => 2_048,
            Self::Mistral => 131_072,
        }
    }

    /// `num_key_value_heads` where a configuration does not state it; null means as many as heads.
    fn default_kv_heads(self, heads: usize) -> usize {
        match self {
            Self::Qwen3 | Self::Qwen2 => 32,
            Self::Llama => heads,
            Self::Mistral => 8,
        }
    }

    /// Ids that begin and end a text where a configuration states none.
    fn default_bos_and_eos(self) -> Option<(u32, u32)> {
        match self {
            Self::Qwen3 | Self::Qwen2 => None,
            Self::Llama | Self::Mistral => Some((1, 2)),
        }
    }
}

/// What of a decoder a configuration may be of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// Without its head too, as `Qwen3Model` is.
    Trunk,
}

impl Part {
    fn is_trunk(self, family: Family, architecture: &str) -> bool {
        self == Self::Trunk && architecture == format!("{family}Model")
    }
}

/// A decoder-only transformer: RMS norm before attention and before a `silu`-gated feed-forward,
/// rotary positions, grouped-query causal attention over the whole context.
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
    /// The positions that a layer with a sliding window sees, where that is fewer. Attention here sees
    /// all, which is the same in a sequence that is no longer.
    pub window: Option<usize>,
    /// The type that activations and weights are meant to have (`f32`, `f16` or `bf16`), where the
    /// configuration states it. Each tensor of the checkpoint states its own.
    pub dtype: Option<DType>,
    /// The id that begins a text, where there is one.
    pub bos_token_id: Option<u32>,
    /// The ids that end a text, each below `vocab_size`; may be empty.
    pub eos_token_ids: Vec<u32>,
    /// Base and scaling of the rotary positions.
    pub rope: RopeConfig,
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
    /// How linear layers are kept that are not in the dtype of their own.
    pub quantization: Option<Quantization>,
    /// Keys of the file that are neither read nor known to be without effect; see [`Self::parse`].
    pub ignored_keys: Vec<String>,
}

/// Bytes that a configuration file may have.
const LARGEST_FILE: u64 = 4 << 20;
/// Weights that a model may have.
const MOST_WEIGHTS: usize = 1 << 42;
/// Widths of a head: the frequencies of its rope table are one literal.
const HEAD_DIM: RangeInclusive<usize> = 1..=1 << 11;
impl DecoderConfig {
    /// Reads `config.json` of `folder`, then `generation_config.json` if there is one, whose
    /// `bos_token_id` and `eos_token_id` take precedence.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let file = folder.join("config.json");
        let mut config = Self::parse(&read(&file)?, &file)?;
        let file = folder.join("generation_config.json");
        if file.exists() {
            config.apply_generation_config(&read(&file)?, &file)?;
        }
        Ok(config)
    }

    /// Reads the text of a `config.json`; `file` is only named in errors.
    ///
    /// Keys that this does not know are refused if their name says that they change the maths of
    /// the network (experts, quantization, multipliers, ...); the others are listed in
    /// `ignored_keys`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        Self::parse_part(text, file, Part::Whole)
    }

    /// As [`Self::parse`], of a model that may lack its head.
    pub(in crate::models) fn parse_trunk(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        Self::parse_part(text, file, Part::Trunk)
    }

    fn parse_part(text: &[u8], file: &Path, part: Part) -> Result<Self, ConfigError> {
        let value = parse_json(text, file)?;
        let of_text = vision_language::text_part(&Fields::root(file, &value)?, file)?;
        let rope_sections = of_text.as_ref().map(|part| part.rope_sections);
        let value = of_text.map_or(value, |part| part.text);
        let root = Fields::root(file, &value)?;
        let family = Family::read(&root, part)?;
        let ignored_keys = options::sort_keys(&root)?;
        options::check_activation(&root)?;

        let num_layers = root.required_count("num_hidden_layers", 1..=1 << 12)?;
        let num_heads = root.required_count("num_attention_heads", 1..=1 << 14)?;
        let hidden_size = root.required_count("hidden_size", 1..=1 << 20)?;
        let vocab_size = root.required_count("vocab_size", 1..=1 << 24)?;
        let max_position_embeddings = root
            .count("max_position_embeddings", POSITIONS)?
            .unwrap_or_else(|| family.default_positions());
        let window = options::read_window(family, &root, num_layers, max_position_embeddings)?;
        let biases = options::read_biases(family, &root)?;
        let (default_bos, default_eos) = family.default_bos_and_eos().unzip();
        let eos = read_eos(&root, vocab_size)?;
        let config = Self {
            family,
            hidden_size,
            intermediate_size: root.required_count("intermediate_size", 1..=1 << 22)?,
            num_layers,
            num_heads,
            num_kv_heads: read_kv_heads(family, &root, num_heads)?,
            head_dim: read_head_dim(family, &root, hidden_size, num_heads)?,
            vocab_size,
            rms_norm_eps: root.number("rms_norm_eps", 1e-30..=1.0)?.unwrap_or(1e-6),
            tie_word_embeddings: root.boolean("tie_word_embeddings")?.unwrap_or(false),
            max_position_embeddings,
            window,
            dtype: read_dtype(&root)?,
            bos_token_id: read_bos(&root, vocab_size)?.or(default_bos
                .filter(|id| !root.is_present("bos_token_id") && (*id as usize) < vocab_size)),
            eos_token_ids: eos.unwrap_or_else(|| {
                default_eos
                    .filter(|id| !root.is_present("eos_token_id") && (*id as usize) < vocab_size)
                    .into_iter()
                    .collect()
            }),
            rope: RopeConfig::read(&root)?,
            rope_sections,
            qk_norm: family == Family::Qwen3,
            qkv_bias: biases.qkv,
            output_bias: biases.output,
            mlp_bias: biases.mlp,
            quantization: Quantization::read(&root)?,
            ignored_keys,
        };
        if let Some(sections) = rope_sections
            && sections.iter().sum::<usize>() != config.head_dim / 2
        {
            let half = config.head_dim / 2;
            let reason =
                format!("`mrope_section` {sections:?} does not add up to {half}, half a head");
            return Err(root.bad_value("rope_scaling", reason));
        }
        let weights = config.num_weights();
        if weights > MOST_WEIGHTS {
            return Err(root.bad_value(
                "num_hidden_layers",
                format!(
                    "with these sizes the model would have {weights} weights, above {MOST_WEIGHTS}"
                ),
            ));
        }
        Ok(config)
    }

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

    /// The most tokens of a sequence, prompt and reply together, and the key of `config.json` that says
    /// so.
    pub fn longest_sequence(&self) -> (usize, &'static str) {
        match self.window {
            Some(window) => (window, "sliding_window"),
            None => (self.max_position_embeddings, "max_position_embeddings"),
        }
    }

    /// Number of weights of the whole model, norms and biases left out; saturating.
    pub fn num_weights(&self) -> usize {
        let heads = self.num_heads.saturating_add(self.num_kv_heads);
        let attention = heads.saturating_mul(self.head_dim).saturating_mul(2);
        let mlp = self.intermediate_size.saturating_mul(3);
        let layers = attention
            .saturating_add(mlp)
            .saturating_mul(self.hidden_size)
            .saturating_mul(self.num_layers);
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        let embeddings = self.vocab_size.saturating_mul(self.hidden_size).saturating_mul(tables);
        layers.saturating_add(embeddings)
    }

    /// The angles per position of the `head_dim / 2` rotated pairs, in radians and before rounding
    /// to `f32`; see [`RopeConfig::inverse_frequencies`].
    pub fn rope_inverse_frequencies(&self) -> Vec<f64> {
        self.rope.inverse_frequencies(self.head_dim)
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

fn read_kv_heads(family: Family, root: &Fields<'_>, heads: usize) -> Result<usize, ConfigError> {
    const KEY: &str = "num_key_value_heads";
    let kv_heads = match root.count(KEY, 1..=1 << 14)? {
        Some(stated) => stated,
        None if root.is_present(KEY) => heads,
        None => family.default_kv_heads(heads),
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(root.bad_value(
            KEY,
            format!("{kv_heads} key-value heads do not divide `num_attention_heads` ({heads})"),
        ));
    }
    Ok(kv_heads)
}

fn read_head_dim(
    family: Family,
    root: &Fields<'_>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    let stated = root.count("head_dim", HEAD_DIM)?;
    let head_dim = match (stated, family) {
        (Some(head_dim), _) => head_dim,
        (None, Family::Qwen3) if root.is_present("head_dim") => {
            return Err(root.bad_value("head_dim", "Qwen3 needs a number here"));
        }
        (None, Family::Qwen3) => 128,
        (None, _) if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        (None, _) => {
            return Err(root.bad_value(
                "hidden_size",
                format!(
                    "not a multiple of `num_attention_heads` ({heads}), and `head_dim` is not stated"
                ),
            ));
        }
    };
    let key = if stated.is_some() { "head_dim" } else { "hidden_size" };
    if !HEAD_DIM.contains(&head_dim) || !head_dim.is_multiple_of(2) {
        return Err(root.bad_value(
            key,
            format!(
                "the width of a head would be {head_dim}; it must be even (for rope) and at most {}",
                HEAD_DIM.end()
            ),
        ));
    }
    Ok(head_dim)
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

fn read_bos(root: &Fields<'_>, vocab_size: usize) -> Result<Option<u32>, ConfigError> {
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

fn read_eos(root: &Fields<'_>, vocab_size: usize) -> Result<Option<Vec<u32>>, ConfigError> {
    root.token_ids("eos_token_id", vocab_size)
}

#[cfg(test)]
mod tests;
