//! Requests of which the logits say nothing of what comes next.

use super::BatchingEngine;
use super::request::{RequestEvent, RequestId};
use crate::words::FinishReason;
use piecewise_backend::device::Device;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;

impl<D: Device> BatchingEngine<D> {
    /// The narrowest range of numbers that a graph computes in.
    pub(super) fn narrowest(graph: &Graph) -> DType {
        let results = graph.nodes().flat_map(|node| &graph.node(node).results);
        let dtypes = results.map(|&value| graph.ty(value).dtype);
        let rank =
            |dtype: &DType| [DType::F32, DType::BF16, DType::F16].iter().position(|d| d == dtype);
        dtypes.filter(|dtype| rank(dtype).is_some()).max_by_key(rank).unwrap_or(DType::F32)
    }

    /// Ends a request whose logits after so many tokens gave no id. Nobody goes on from what it
    /// computed, the request itself neither, where it is kept.
    pub(super) fn end_without_id(
        &mut self,
        request: RequestId,
        tokens: u64,
        events: &mut Vec<RequestEvent>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        self.pool.forget(sequence.table.pages());
        let message = reason(tokens, sequence.controls_logits(), self.computes_in);
        sequence.release(&mut self.pool, &mut self.slots);
        self.bad_logits += 1;
        tracing::warn!("request {request} ends: {message}");
        self.finish(request, FinishReason::BadLogits, Some(message.into()), events);
    }
}

fn reason(tokens: u64, is_controlled: bool, computes_in: DType) -> String {
    let by = if is_controlled { ", with its mask, biases and penalties," } else { "" };
    let advice = match computes_in {
        DType::F16 => {
            "the model computes in f16, which ends at 65504: try bf16 (`--dtype bf16`), which does not"
        }
        _ => {
            "look for NaN or infinite numbers in the weights, and run with checks.poison and \
             checks.compare to see whether an op makes them"
        }
    };
    let name = computes_in.name();
    format!(
        "after {tokens} tokens its logits{by} in {name} hold NaN or no finite largest value, so that no \
         token can be chosen; {advice}"
    )
}
