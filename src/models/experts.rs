//! Experts as a part that layers of decoders are built of.

use super::config::{DecoderConfig, ExpertsConfig};
use super::layers::{plain_weight, refuse_narrow};
use super::op_builders::{ExpertWeights, KernelOps};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;
use piecewise_ir::weight::Recipe;
use piecewise_kernels::experts::{RouterScores, Routing};

/// What a family calls the tensors of its experts.
pub(super) struct ExpertNames {
    /// What a layer has in the place of a feed-forward.
    pub(super) block: &'static str,
    /// The linear layer in it whose rows score experts.
    pub(super) router: &'static str,
    /// The projections of an expert: gate, what that gates, and back.
    pub(super) projections: [&'static str; 3],
}

/// `h [T, hidden]` through the experts that its router chooses, by a softmax over all of them.
pub(super) fn experts<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    of: &ExpertsConfig,
    names: &ExpertNames,
    h: Tensor<'b>,
) -> Tensor<'b> {
    let _scope = b.scope(names.block);
    let [hidden, inner, count] =
        [config.hidden_size, of.intermediate_size, of.count].map(|n| n as u64);
    let router = plain_weight(b, &format!("{}.weight", names.router), [count, hidden]);
    let logits = h.matmul_transposed(router, DType::F32);
    let [gate, up, down] = names.projections;
    let weights = ExpertWeights {
        gate_up: stacked(b, config, count, &[gate, up], [inner, hidden]),
        down: stacked(b, config, count, &[down], [hidden, inner]),
    };
    let routing = Routing {
        top_k: of.per_token as u32,
        scores: RouterScores::Softmax,
        renormalize: of.renormalize,
        scale: 1.0,
    };
    h.experts(logits, weights, &routing)
}

/// The projections of all experts as one weight `[count, rows of all names, columns]`: those of an expert
/// stand one after the other.
fn stacked<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    count: u64,
    names: &[&str],
    [rows, columns]: [u64; 2],
) -> Tensor<'b> {
    let dtype = config.dtype.unwrap_or(DType::BF16);
    let mut parts = Vec::new();
    for (expert, name) in (0..count).flat_map(|expert| names.iter().map(move |name| (expert, name)))
    {
        let path = format!("experts.{expert}.{name}.weight");
        let part = b.tensor(&path, dtype, [rows, columns]);
        if let Ok(ty) = part.ty()
            && let Some(refused) = refuse_narrow(b, &path, ty.dtype)
        {
            return refused;
        }
        parts.push(part);
    }
    let of = Box::new(Recipe::Concat { axis: 0, parts });
    b.weight_of(Recipe::Reshape { shape: vec![count, names.len() as u64 * rows, columns], of })
}
