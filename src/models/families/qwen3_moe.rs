//! Qwen3 with experts, in all layers but those that a configuration names.

use super::super::config::options::{self, refuse_true};
use super::super::config::{DecoderConfig, ExpertsConfig};
use super::super::experts::{ExpertNames, experts};
use super::super::layers::{Mix, Norm, attention, layer_of};
use super::description::{Defaults, Description, PLAIN};
use super::llama::read_attention_biases;
use piecewise_ir::builder::{Builder, Tensor};

pub(super) const QWEN3_MOE: Description = Description {
    defaults: Defaults {
        vocab_size: Some(151_936),
        hidden_size: Some(2048),
        intermediate_size: Some(6144),
        layers: Some(24),
        heads: Some(32),
        kv_heads: Some(4),
        positions: 32_768,
        ..Defaults::STATED
    },
    // The last two are of training.
    keys: &[
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "mlp_only_layers",
        "decoder_sparse_step",
        "output_router_logits",
        "router_aux_loss_coef",
    ],
    read: |config, root| {
        refuse_true(root, "mlp_bias", "Qwen3 has no such biases")?;
        config.qk_norm = true;
        read_attention_biases(config, root)?;
        // A window is of all layers.
        let is_on = root.boolean("use_sliding_window")?.unwrap_or(false);
        let default = (!root.is_present("sliding_window")).then_some(4096);
        let window = options::window(root)?.or(default).filter(|_| is_on);
        config.attention = options::windows(root, config.num_layers, window, |_| true)?;
        let [count, per_token] = ExpertsConfig::counts(root, [128, 8])?;
        let dense = root.counts("mlp_only_layers", 0..=config.num_layers - 1)?.unwrap_or_default();
        let step = root.count("decoder_sparse_step", 1..=1 << 12)?.unwrap_or(1);
        let is_dense = |layer: &usize| dense.contains(layer) || !(layer + 1).is_multiple_of(step);
        config.experts = Some(ExpertsConfig {
            count,
            per_token,
            intermediate_size: root.count("moe_intermediate_size", 1..=1 << 22)?.unwrap_or(768),
            renormalize: root.boolean("norm_topk_prob")?.unwrap_or(false),
            dense_layers: (0..config.num_layers).filter(is_dense).collect(),
        });
        Ok(())
    },
    sparse_layer,
    ..PLAIN
};

const NAMES: ExpertNames = ExpertNames {
    block: "mlp",
    router: "gate",
    projections: ["gate_proj", "up_proj", "down_proj"],
};

fn sparse_layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    of: &ExpertsConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let attended = |h| attention(b, config, h, Some(Norm::Rounded), mix);
    layer_of(b, config, x, attended, |h| experts(b, config, of, &NAMES, h))
}
