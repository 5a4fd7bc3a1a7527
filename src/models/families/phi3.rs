//! Phi 3 and 4: q, k and v in one tensor, gate and up in another, which are split at load; a part of each
//! head that rotates, and longrope.

use super::super::config::options::{self, refuse_true};
use super::super::config::rope::RopeForm;
use super::super::config::{DecoderConfig, LayerAttention};
use super::super::layers::{Mix, layer_of, linear_rows};
use super::description::{Defaults, Description, PLAIN};
use piecewise_ir::builder::{Builder, Tensor};

pub(super) const PHI3: Description = Description {
    defaults: Defaults {
        vocab_size: Some(32_064),
        hidden_size: Some(3072),
        intermediate_size: Some(8192),
        layers: Some(32),
        heads: Some(32),
        positions: 4096,
        eps: 1e-5,
        bos: Some(1),
        eos: Some(32_000),
        ..Defaults::STATED
    },
    keys: &["original_max_position_embeddings"],
    is_fused: true,
    rope: RopeForm { theta: 10_000.0, is_partial: true, is_by_kind: false },
    read: |config, root| {
        refuse_true(root, "attention_bias", "Phi 3 has no such biases")?;
        refuse_true(root, "mlp_bias", "Phi 3 has no such biases")?;
        let of_layer =
            LayerAttention { window: options::window(root)?, ..LayerAttention::default() };
        config.attention = vec![of_layer; config.num_layers];
        Ok(())
    },
    layer,
    ..PLAIN
};

fn layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    layer_of(b, config, x, |h| attention(b, config, h, mix), |h| feed_forward(b, config, h))
}

fn attention<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    h: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self_attn");
    let [hidden, dim] = [config.hidden_size as u64, config.head_dim as u64];
    let [q_width, kv_width] = [config.num_heads, config.num_kv_heads].map(|n| n as u64 * dim);
    let all = [q_width + 2 * kv_width, hidden];
    let part =
        |start, width| linear_rows(b, config, "qkv_proj", h, all, start..start + width).heads(dim);
    let q = part(0, q_width);
    let k = part(q_width, kv_width);
    let v = part(q_width + kv_width, kv_width);
    config.linear(b, "o_proj", mix([q, k, v]), [hidden, q_width], false)
}

fn feed_forward<'b>(b: &'b Builder, config: &DecoderConfig, h: Tensor<'b>) -> Tensor<'b> {
    let _scope = b.scope("mlp");
    let [hidden, inner] = [config.hidden_size as u64, config.intermediate_size as u64];
    let part = |rows| linear_rows(b, config, "gate_up_proj", h, [2 * inner, hidden], rows);
    let (gate, up) = (part(0..inner), part(inner..2 * inner));
    config.linear(b, "down_proj", gate.swiglu(up), [hidden, inner], false)
}
