//! Mixtral: Mistral with experts in all layers, whose weights always add up to 1.

use super::super::config::options::{self, refuse_true};
use super::super::config::rope::RopeForm;
use super::super::config::{DecoderConfig, ExpertsConfig};
use super::super::experts::{ExpertNames, experts};
use super::super::layers::{Mix, attention, layer_of};
use super::description::{Defaults, Description, PLAIN};
use piecewise_ir::builder::{Builder, Tensor};

pub(super) const MIXTRAL: Description = Description {
    defaults: Defaults {
        vocab_size: Some(32_000),
        hidden_size: Some(4096),
        intermediate_size: Some(14_336),
        layers: Some(32),
        heads: Some(32),
        kv_heads: Some(8),
        positions: 131_072,
        eps: 1e-5,
        bos: Some(1),
        eos: Some(2),
        ..Defaults::STATED
    },
    // The last three are of training.
    keys: &[
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
    ],
    rope: RopeForm { theta: 1_000_000.0, is_partial: false, is_by_kind: false },
    read: |config, root| {
        refuse_true(root, "mlp_bias", "Mixtral has no such biases")?;
        refuse_true(root, "attention_bias", "Mixtral has no such biases")?;
        let window = options::window(root)?;
        config.attention = options::windows(root, config.num_layers, window, |_| true)?;
        let [count, per_token] = ExpertsConfig::counts(root, [8, 2])?;
        config.experts = Some(ExpertsConfig {
            count,
            per_token,
            intermediate_size: config.intermediate_size,
            renormalize: true,
            dense_layers: Vec::new(),
        });
        Ok(())
    },
    sparse_layer,
    ..PLAIN
};

const NAMES: ExpertNames =
    ExpertNames { block: "block_sparse_moe", router: "gate", projections: ["w1", "w3", "w2"] };

fn sparse_layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    of: &ExpertsConfig,
    x: Tensor<'b>,
    mix: &Mix<'_, 'b>,
) -> Tensor<'b> {
    let attended = |h| attention(b, config, h, None, mix);
    layer_of(b, config, x, attended, |h| experts(b, config, of, &NAMES, h))
}
