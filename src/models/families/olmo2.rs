//! OLMo 2: norms of what attention and feed-forward give, none of what they take; q and k normed over
//! all heads at once.

use super::super::config::DecoderConfig;
use super::super::config::options::refuse_true;
use super::super::layers::{Mix, Norm, feed_forward, norm, norm_of};
use super::description::{Defaults, Description, PLAIN};
use super::llama::{read_attention_biases, refuse_windows};
use piecewise_ir::builder::{Builder, Tensor};

pub(super) const OLMO2: Description = Description {
    defaults: Defaults {
        vocab_size: Some(50_304),
        hidden_size: Some(4096),
        intermediate_size: Some(11_008),
        layers: Some(32),
        heads: Some(32),
        eps: 1e-5,
        eos: Some(50_279),
        ..Defaults::STATED
    },
    read: |config, root| {
        refuse_true(root, "mlp_bias", "OLMo 2 has no such biases")?;
        read_attention_biases(config, root)?;
        refuse_windows(config, root)
    },
    layer,
    norm: Norm::Wide,
    ..PLAIN
};

fn layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let normed = |name, x| norm(b, config, Norm::Wide, name, x);
    let x = x + normed("post_attention_layernorm", attention(b, config, x, mix));
    x + normed("post_feedforward_layernorm", feed_forward(b, config, x))
}

fn attention<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self_attn");
    let [hidden, dim] = [config.hidden_size as u64, config.head_dim as u64];
    let [q_width, kv_width] = [config.num_heads, config.num_kv_heads].map(|n| n as u64 * dim);
    let project = |name, width| config.linear(b, name, x, [width, hidden], config.qkv_bias);
    let normed = |name, x| norm_of(b, config, Norm::Wide, name, x);
    let q = normed("q_norm.weight", project("q_proj", q_width)).heads(dim);
    let k = normed("k_norm.weight", project("k_proj", kv_width)).heads(dim);
    let v = project("v_proj", kv_width).heads(dim);
    config.linear(b, "o_proj", mix([q, k, v]), [hidden, q_width], config.output_bias)
}
