//! Which options of a configuration are computed, which are inert, and which are refused.
//!
//! The policy, for every key at the root of `config.json`:
//! 1. a key that [`DecoderConfig`](super::DecoderConfig) reads is validated;
//! 2. a key of the list `INERT` says nothing about the maths of inference and is ignored;
//! 3. any other key that is null, false or empty asks for nothing and is ignored;
//! 4. a key that is known to change the maths, or whose name says so (`CHANGES_MATHS`), is an error;
//! 5. what remains is ignored and listed in `ignored_keys`, so that a caller can warn: the code of
//!    these architectures in transformers does not read it either.

use serde_json::Value;

use super::error::ConfigError;
use super::family::Family;
use super::fields::Fields;

/// Keys that are read elsewhere, of every architecture.
const READ_OF_ALL: &[&str] = &[
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "tie_word_embeddings",
    "max_position_embeddings",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
];

/// Further ones that are read of a decoder.
const READ: &[&str] = &[
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "quantization_config",
];

/// Keys about training, generation defaults, bookkeeping and file formats of other programs.
const INERT: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "max_length",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_return_dict",
];

/// Words in a key's name that say that it changes the maths of the network.
const CHANGES_MATHS: &[&str] = &[
    "adapter",
    "alibi",
    "attention_chunk",
    "attention_sink",
    "attn_sink",
    "audio_config",
    "auto_map",
    "bias",
    "clip_qkv",
    "compression",
    "cross_attention",
    "encoder",
    "expert",
    "hidden_activation",
    "layernorm",
    "layer_norm",
    "layer_scale",
    "layerscale",
    "logit_scale",
    "lora",
    "mamba",
    "moe",
    "mrope",
    "multiplier",
    "mup",
    "no_rope",
    "nope",
    "norm_eps",
    "norm_type",
    "original_max_position",
    "parallel_attn",
    "pooler_act",
    "pruned_heads",
    "qk_norm",
    "quantization",
    "query_pre_attn",
    "register_tokens",
    "residual_scale",
    "rope_interleave",
    "rope_layer",
    "rope_local",
    "rotary",
    "scale_emb",
    "scale_depth",
    "sliding",
    "softcap",
    "swiglu",
    "text_config",
    "vision_config",
];

/// Applies the policy of this module to what a decoder reads; returns the keys of its last rule.
pub(super) fn sort_keys(root: &Fields<'_>) -> Result<Vec<String>, ConfigError> {
    sort_keys_beside(root, READ)
}

/// Applies the policy of this module where, besides those of all, the keys `read` are read
/// elsewhere.
pub(in crate::models) fn sort_keys_beside(
    root: &Fields<'_>,
    read: &[&str],
) -> Result<Vec<String>, ConfigError> {
    let mut ignored = Vec::new();
    for (key, value) in root.iter() {
        let is_read = READ_OF_ALL.contains(&key) || read.contains(&key);
        if is_read || INERT.contains(&key) || asks_for_nothing(value) {
            continue;
        }
        if CHANGES_MATHS.iter().any(|word| key.contains(word)) {
            return Err(root.unsupported(key, "remove it if it has no effect on the model"));
        }
        ignored.push(key.to_owned());
    }
    Ok(ignored)
}

pub(in crate::models) fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Refuses every activation of the feed-forward gate but `silu`.
pub(super) fn check_activation(root: &Fields<'_>) -> Result<(), ConfigError> {
    match root.string("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(_) => Err(root.unsupported("hidden_act", "only silu (or swish, its other name) is")),
    }
}

/// Which linear layers add a bias.
#[derive(Debug, Clone, Copy)]
pub(super) struct Biases {
    pub(super) qkv: bool,
    pub(super) output: bool,
    pub(super) mlp: bool,
}

/// Reads `attention_bias` and `mlp_bias` as the code of each family does.
pub(super) fn read_biases(family: Family, root: &Fields<'_>) -> Result<Biases, ConfigError> {
    let attention = root.boolean("attention_bias")?.unwrap_or(false);
    let mlp = root.boolean("mlp_bias")?.unwrap_or(false);
    if mlp && family != Family::Llama {
        return Err(root.unsupported("mlp_bias", format!("{family} has no such biases")));
    }
    match family {
        // q, k and v always have biases, whatever the configuration says.
        Family::Qwen2 => Ok(Biases { qkv: true, output: false, mlp }),
        Family::Mistral if attention => {
            Err(root.unsupported("attention_bias", "Mistral has no such biases"))
        }
        Family::Qwen3 | Family::Llama | Family::Mistral => {
            Ok(Biases { qkv: attention, output: attention, mlp })
        }
    }
}

/// How many of the last positions attention sees, where the family's code has a window that is shorter
/// than `max_positions`.
///
/// When a family uses its window: Qwen2 and Qwen3 when `use_sliding_window` is set, in the layers
/// that `layer_types` calls `sliding_attention` (absent: from `max_window_layers` on); Mistral
/// whenever `sliding_window` is not null, 4096 being its default; Llama never, so one that is stated
/// there and not switched off counts too, because it contradicts the architecture.
pub(super) fn read_window(
    family: Family,
    root: &Fields<'_>,
    layers: usize,
    max_positions: usize,
) -> Result<Option<usize>, ConfigError> {
    const WINDOW: std::ops::RangeInclusive<usize> = 1..=usize::MAX >> 1;
    let stated = root.count("sliding_window", WINDOW)?;
    let switch = root.boolean("use_sliding_window")?;
    let first_windowed = root.count("max_window_layers", 0..=usize::MAX >> 1)?;
    let layer_types = root.strings("layer_types")?;
    if let Some(types) = &layer_types {
        if types.len() != layers {
            return Err(root.bad_value(
                "layer_types",
                format!("has {} entries for {layers} layers (`num_hidden_layers`)", types.len()),
            ));
        }
        if types.iter().any(|kind| !matches!(*kind, "full_attention" | "sliding_attention")) {
            return Err(root.unsupported("layer_types", "every layer must be full_attention"));
        }
    }
    let slides = |types: &Vec<&str>| types.contains(&"sliding_attention");
    let default = if root.is_present("sliding_window") { None } else { Some(4096) };
    let (window, in_use) = match family {
        Family::Qwen2 | Family::Qwen3 if switch.unwrap_or(false) => {
            let window = stated.or(default);
            let by_depth = first_windowed.unwrap_or(28) < layers;
            (window, layer_types.as_ref().map_or(by_depth, slides) && window.is_some())
        }
        Family::Mistral => {
            let window = stated.or(default);
            (window, window.is_some())
        }
        Family::Llama => (stated, stated.is_some() && switch != Some(false)),
        Family::Qwen2 | Family::Qwen3 => (None, false),
    };
    if !in_use && layer_types.as_ref().is_some_and(slides) {
        return Err(root.unsupported("layer_types", "every layer must be full_attention"));
    }
    Ok(window.filter(|window| in_use && *window < max_positions))
}
