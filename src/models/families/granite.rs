//! Granite: Llama's layers with factors at the embedding, at what each adds, at scores and at logits.

use super::super::config::{DecoderConfig, Multipliers};
use super::super::layers::{Mix, attention, feed_forward, layer_of, scaled};
use super::description::{Defaults, Description, PLAIN};
use super::llama::{read_attention_biases, refuse_windows};
use piecewise_ir::builder::{Builder, Tensor};

pub(super) const GRANITE: Description = Description {
    defaults: Defaults {
        vocab_size: Some(32_000),
        hidden_size: Some(4096),
        intermediate_size: Some(11_008),
        layers: Some(32),
        heads: Some(32),
        bos: Some(1),
        eos: Some(2),
        ..Defaults::STATED
    },
    keys: &[
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
    ],
    read: |config, root| {
        let factor = |key| Ok(root.number(key, 1e-9..=1e9)?.unwrap_or(1.0));
        config.multipliers = Multipliers {
            embedding: factor("embedding_multiplier")?,
            residual: factor("residual_multiplier")?,
            // What is stated divides.
            logits: 1.0 / factor("logits_scaling")?,
        };
        // It is the scale, and not beside one by the width of a head.
        config.score_scale = Some(factor("attention_multiplier")?);
        read_attention_biases(config, root)?;
        config.mlp_bias = root.boolean("mlp_bias")?.unwrap_or(false);
        refuse_windows(config, root)
    },
    embed: |config, rows| scaled(rows, config.multipliers.embedding),
    layer,
    logits: |config, logits| scaled(logits, config.multipliers.logits),
    ..PLAIN
};

fn layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let by = config.multipliers.residual;
    let attended = |h| scaled(attention(b, config, h, None, mix), by);
    layer_of(b, config, x, attended, |h| scaled(feed_forward(b, config, h), by))
}
