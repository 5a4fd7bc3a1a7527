//! Gemma 2 and the text of Gemma 3: norms by `1 + w` before and after attention and feed-forward, and
//! layers with a window between those that see all. Gemma 2 caps scores and logits; Gemma 3 has norms of
//! q and k, and a rope of its own in layers with a window.

use super::super::config::fields::Fields;
use super::super::config::options::{self, refuse_true};
use super::super::config::rope::{KINDS, RopeForm};
use super::super::config::{Activation, ConfigError, DecoderConfig, Family, LayerRope, RopeConfig};
use super::super::layers::{Mix, Norm, attention, capped, feed_forward, norm};
use super::description::{Defaults, Description, PLAIN};
use piecewise_ir::builder::{Builder, Tensor};

pub(super) const GEMMA2: Description = Description {
    defaults: Defaults {
        vocab_size: Some(256_000),
        hidden_size: Some(2304),
        intermediate_size: Some(9216),
        layers: Some(26),
        heads: Some(8),
        kv_heads: Some(4),
        head_dim: Some(256),
        positions: 8192,
        is_tied: true,
        bos: Some(2),
        eos: Some(1),
        ..Defaults::STATED
    },
    keys: &KEYS,
    activation: Activation::GeluTanh,
    read: |config, root| {
        read_scores(config, root)?;
        config.score_softcap = cap(root, "attn_logit_softcapping", Some(50.0))?;
        config.logit_softcap = cap(root, "final_logit_softcapping", Some(30.0))?;
        read_windows(config, root, 2)
    },
    // The factor is rounded to the dtype of activations first.
    embed: |config, rows| rows * (config.hidden_size as f64).sqrt(),
    layer,
    norm: Norm::OnePlus,
    logits: |config, logits| capped(logits, config.logit_softcap),
    ..PLAIN
};

pub(super) const GEMMA3: Description = Description {
    defaults: Defaults { vocab_size: Some(262_208), positions: 131_072, ..GEMMA2.defaults },
    rope: RopeForm { theta: 1_000_000.0, is_partial: false, is_by_kind: true },
    read: |config, root| {
        read_scores(config, root)?;
        config.score_softcap = cap(root, "attn_logit_softcapping", None)?;
        config.logit_softcap = cap(root, "final_logit_softcapping", None)?;
        config.qk_norm = true;
        let pattern = root.count(PATTERN, 1..=1 << 12)?.unwrap_or(6);
        read_windows(config, root, pattern)?;
        config.attention.iter_mut().filter(|of| of.window.is_some()).for_each(|of| {
            of.rope = LayerRope::Sliding;
        });
        read_sliding_rope(config, root)
    },
    ..GEMMA2
};

const PATTERN: &str = "sliding_window_pattern";
/// `_sliding_window_pattern` is what a file says that lists its layers too.
const KEYS: [&str; 8] = [
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "hidden_activation",
    "use_bidirectional_attention",
    "rope_local_base_freq",
    PATTERN,
    "_sliding_window_pattern",
];

fn read_scores(config: &mut DecoderConfig, root: &Fields<'_>) -> Result<(), ConfigError> {
    refuse_true(root, "attention_bias", "biases of attention are not")?;
    refuse_true(root, "use_bidirectional_attention", "only attention to what comes before is")?;
    let scalar = root.number("query_pre_attn_scalar", 1e-3..=1e9)?.unwrap_or(256.0);
    config.score_scale = Some(scalar.powf(-0.5));
    Ok(())
}

/// A cap; where a file says null there is none.
fn cap(root: &Fields<'_>, key: &str, default: Option<f64>) -> Result<Option<f64>, ConfigError> {
    let default = default.filter(|_| !root.is_present(key));
    Ok(root.number(key, 1e-3..=1e9)?.or(default))
}

/// Windows in the layers that `layer_types` names, or else in all but every `pattern`-th.
fn read_windows(
    config: &mut DecoderConfig,
    root: &Fields<'_>,
    pattern: usize,
) -> Result<(), ConfigError> {
    let window = options::window(root)?.unwrap_or(4096);
    let by_pattern = |layer: usize| !(layer + 1).is_multiple_of(pattern);
    config.attention = options::windows(root, config.num_layers, Some(window), by_pattern)?;
    Ok(())
}

/// The rope of layers with a window: in `rope_parameters` under their kind, or by the older field.
fn read_sliding_rope(config: &mut DecoderConfig, root: &Fields<'_>) -> Result<(), ConfigError> {
    let form = RopeForm { theta: 10_000.0, is_partial: false, is_by_kind: false };
    let kinds = root.child("rope_parameters")?;
    let own = kinds.map(|kinds| kinds.child(KINDS[1])).transpose()?.flatten();
    config.sliding_rope = Some(match own {
        Some(own) => RopeConfig::read_one(&own, form, config.max_position_embeddings)?,
        None => {
            let theta = root.number("rope_local_base_freq", 1.0..=1e15)?;
            RopeConfig::plain(theta.unwrap_or(form.theta))
        }
    });
    Ok(())
}

/// Four norms: before and after attention, before and after the feed-forward.
fn layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let normed = |name, x| norm(b, config, Norm::OnePlus, name, x);
    let of_heads = (config.family == Family::Gemma3).then_some(Norm::OnePlus);
    let mixed = attention(b, config, normed("input_layernorm", x), of_heads, mix);
    let x = x + normed("post_attention_layernorm", mixed);
    let fed = feed_forward(b, config, normed("pre_feedforward_layernorm", x));
    x + normed("post_feedforward_layernorm", fed)
}
