//! Which options of a configuration are computed, which are inert, and which are refused.
//!
//! The policy, for every key at the root of `config.json`:
//! 1. a key that the family reads is validated;
//! 2. a key of the list `INERT` says nothing about the maths of inference and is ignored;
//! 3. any other key that is null, false or empty asks for nothing and is ignored;
//! 4. a key that is known to change the maths, or whose name says so (`CHANGES_MATHS`), is an error;
//! 5. what remains is ignored and listed in `ignored_keys`, so that a caller can warn: the code of
//!    these architectures in transformers does not read it either.

use serde_json::Value;

use super::error::ConfigError;
use super::fields::Fields;
use super::layers::{Activation, LayerAttention};

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

/// Further ones that are read of every decoder.
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

/// Applies the policy of this module to what a decoder reads, whose family reads its `own` keys too;
/// returns the keys of its last rule.
pub(in crate::models) fn sort_keys(
    root: &Fields<'_>,
    own: &[&str],
) -> Result<Vec<String>, ConfigError> {
    sort_keys_beside(root, &[READ, own].concat())
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

/// Refuses other activations of the feed-forward gate than the one that a family has.
pub(in crate::models) fn check_activation(
    root: &Fields<'_>,
    expected: Activation,
) -> Result<(), ConfigError> {
    let (names, supported): (&[&str], _) = match expected {
        Activation::Silu => (&["silu", "swish"], "only silu (or swish, its other name) is"),
        Activation::GeluTanh => (&["gelu_pytorch_tanh"], "only gelu_pytorch_tanh is"),
    };
    for key in ["hidden_act", "hidden_activation"] {
        if root.string(key)?.is_some_and(|name| !names.contains(&name)) {
            return Err(root.unsupported(key, supported));
        }
    }
    Ok(())
}

/// Refuses a field that is true, since the family has no such thing.
pub(in crate::models) fn refuse_true(
    root: &Fields<'_>,
    key: &str,
    supported: &str,
) -> Result<(), ConfigError> {
    match root.boolean(key)? {
        Some(true) => Err(root.unsupported(key, supported)),
        _ => Ok(()),
    }
}

/// How many keys a layer with a window sees; `None` where none is stated.
pub(in crate::models) fn window(root: &Fields<'_>) -> Result<Option<u32>, ConfigError> {
    let window = root.count("sliding_window", 1..=i32::MAX as usize)?;
    Ok(window.map(|window| window as u32))
}

/// The attention of each layer: a window in those that `layer_types` names, or where that is not stated, in those for
/// which `slides` holds.
pub(in crate::models) fn windows(
    root: &Fields<'_>,
    layers: usize,
    window: Option<u32>,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<LayerAttention>, ConfigError> {
    let listed = sliding_layers(root, layers)?;
    if window.is_none() && listed.as_ref().is_some_and(|layers| layers.contains(&true)) {
        return Err(
            root.unsupported("layer_types", "windows are off, so each must be full_attention")
        );
    }
    let slides = |layer| listed.as_ref().map_or_else(|| slides(layer), |layers| layers[layer]);
    let of_layer = |layer| LayerAttention {
        window: window.filter(|_| slides(layer)),
        ..LayerAttention::default()
    };
    Ok((0..layers).map(of_layer).collect())
}

/// Which layers have a window by `layer_types`; `None` where that is not stated.
pub(in crate::models) fn sliding_layers(
    root: &Fields<'_>,
    layers: usize,
) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(types) = root.strings("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        return Err(root.bad_value(
            "layer_types",
            format!("has {} entries for {layers} layers (`num_hidden_layers`)", types.len()),
        ));
    }
    if types.iter().any(|kind| !matches!(*kind, "full_attention" | "sliding_attention")) {
        let supported = "layers are full_attention or sliding_attention";
        return Err(root.unsupported("layer_types", supported));
    }
    Ok(Some(types.into_iter().map(|kind| kind == "sliding_attention").collect()))
}
