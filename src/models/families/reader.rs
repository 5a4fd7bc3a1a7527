//! A `config.json` as the configuration of a decoder.

use super::super::config::fields::Fields;
use super::super::config::options;
use super::super::config::rope::POSITIONS;
use super::super::config::vision_language::{self, TOWER, text_part};
use super::super::config::wrappers::{TEXT, TOWERS, decoder_within};
use super::super::config::{
    ConfigError, DecoderConfig, Family, Multipliers, Quantization, RopeConfig, parse_json, read,
    read_bos, read_dtype, read_eos,
};
use super::description::{Defaults, Description};
use std::ops::RangeInclusive;
use std::path::Path;

/// Weights that a model may have.
const MOST_WEIGHTS: usize = 1 << 42;
/// Widths of a head: the frequencies of its rope table are one literal.
const HEAD_DIM: RangeInclusive<usize> = 1..=1 << 11;

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
    /// A field that is missing or null means what it does to the family's code in transformers. Keys
    /// that this does not know are refused if their name says that they change the maths of the network
    /// (experts, quantization, multipliers, ...); the others are listed in `ignored_keys`.
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
        let root = Fields::root(file, &value)?;
        if let Some(nested) = decoder_within(&root)? {
            let mut config = read_decoder(&Fields::root(file, &nested)?.within(TEXT), part)?;
            config.towers = TOWERS;
            return Ok(config);
        }
        let Some(vision_language::TextPart { text, rope_sections }) = text_part(&root, file)?
        else {
            return read_decoder(&root, part);
        };
        let root = Fields::root(file, &text)?;
        let mut config = read_decoder(&root, part)?;
        let half = config.head_dim / 2;
        if rope_sections.iter().sum::<usize>() != half {
            let reason =
                format!("`mrope_section` {rope_sections:?} does not add up to {half}, half a head");
            return Err(root.bad_value("rope_scaling", reason));
        }
        config.rope_sections = Some(rope_sections);
        config.towers = TOWER;
        Ok(config)
    }
}

/// The decoder of text that an object describes.
fn read_decoder(root: &Fields<'_>, part: Part) -> Result<DecoderConfig, ConfigError> {
    let family = read_family(root, part)?;
    let Description { defaults, keys, rope, activation, read, is_fused, .. } = family.description();
    let ignored_keys = options::sort_keys(root, keys)?;
    options::check_activation(root, *activation)?;
    let count = |key, bounds, default: Option<usize>| {
        root.count(key, bounds)?.or(default).ok_or_else(|| root.missing(key))
    };
    let num_layers = count("num_hidden_layers", 1..=1 << 12, defaults.layers)?;
    let num_heads = count("num_attention_heads", 1..=1 << 14, defaults.heads)?;
    let hidden_size = count("hidden_size", 1..=1 << 20, defaults.hidden_size)?;
    let vocab_size = count("vocab_size", 1..=1 << 24, defaults.vocab_size)?;
    let positions = count("max_position_embeddings", POSITIONS, Some(defaults.positions))?;
    let known =
        |key, id: Option<u32>| id.filter(|id| !root.is_present(key) && (*id as usize) < vocab_size);
    let eos = read_eos(root, vocab_size)?;
    let mut config = DecoderConfig {
        family,
        hidden_size,
        intermediate_size: count("intermediate_size", 1..=1 << 22, defaults.intermediate_size)?,
        num_layers,
        num_heads,
        num_kv_heads: read_kv_heads(defaults, root, num_heads)?,
        head_dim: read_head_dim(defaults, root, hidden_size, num_heads)?,
        vocab_size,
        rms_norm_eps: root.number("rms_norm_eps", 1e-30..=1.0)?.unwrap_or(defaults.eps),
        tie_word_embeddings: root.boolean("tie_word_embeddings")?.unwrap_or(defaults.is_tied),
        max_position_embeddings: positions,
        attention: Vec::new(),
        score_scale: None,
        score_softcap: None,
        logit_softcap: None,
        activation: *activation,
        multipliers: Multipliers::default(),
        dtype: read_dtype(root)?,
        bos_token_id: read_bos(root, vocab_size)?.or(known("bos_token_id", defaults.bos)),
        eos_token_ids: eos
            .unwrap_or_else(|| known("eos_token_id", defaults.eos).into_iter().collect()),
        rope: RopeConfig::read(root, *rope, positions)?,
        sliding_rope: None,
        rope_sections: None,
        qk_norm: false,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        experts: None,
        quantization: Quantization::read(root)?,
        ignored_keys,
        towers: &[],
    };
    read(&mut config, root)?;
    if *is_fused && config.quantization.is_some() {
        let supported = "the fused tensors of this family are split as floats alone";
        return Err(root.unsupported("quantization_config", supported));
    }
    if config.experts.is_some() && config.quantization.is_some() {
        let supported = "experts are read as floats alone";
        return Err(root.unsupported("quantization_config", supported));
    }
    config.rope.check(root, config.head_dim)?;
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

fn read_family(root: &Fields<'_>, part: Part) -> Result<Family, ConfigError> {
    let known = |key, is_named: &dyn Fn(&Family) -> bool| {
        Family::ALL.into_iter().find(is_named).ok_or_else(|| {
            let names = Family::ALL.map(Family::architecture).join(", ");
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

fn read_kv_heads(
    defaults: &Defaults,
    root: &Fields<'_>,
    heads: usize,
) -> Result<usize, ConfigError> {
    const KEY: &str = "num_key_value_heads";
    // Null means as many as heads, in every family.
    let default = defaults.kv_heads.filter(|_| !root.is_present(KEY)).unwrap_or(heads);
    let kv_heads = root.count(KEY, 1..=1 << 14)?.unwrap_or(default);
    if !heads.is_multiple_of(kv_heads) {
        return Err(root.bad_value(
            KEY,
            format!("{kv_heads} key-value heads do not divide `num_attention_heads` ({heads})"),
        ));
    }
    Ok(kv_heads)
}

fn read_head_dim(
    defaults: &Defaults,
    root: &Fields<'_>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    let stated = root.count("head_dim", HEAD_DIM)?.or(defaults.head_dim);
    let head_dim = match stated {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
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
