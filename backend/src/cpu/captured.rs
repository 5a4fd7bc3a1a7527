//! Captured graphs of the CPU: what a replay runs.

use super::program::BoundCall;
use crate::binding;
use crate::device::{BoundAddress, GraphShape, Replayable};
use piecewise_kernels::step::LaunchContext;
use std::sync::Arc;

/// A captured graph: calls with raw addresses and the sizes they were captured for. It keeps
/// alive the memory and kernels that it points to.
#[derive(Debug)]
pub struct CpuCaptured {
    pub(super) label: String,
    pub(super) calls: Vec<Arc<BoundCall>>,
    /// For each call, whether it has the sizes of a replay and not those of the capture.
    pub(super) follows: Vec<bool>,
    /// Where the calls of each program end.
    pub(super) ends: Vec<usize>,
    pub(super) sizes: Vec<u64>,
}

impl CpuCaptured {
    /// The calls of a replay at these sizes, each with its own.
    pub(super) fn calls_at<'a>(
        &'a self,
        sizes: &'a [u64],
    ) -> impl Iterator<Item = (&'a Arc<BoundCall>, LaunchContext<'a>)> + Clone + Send {
        let calls = self.calls.iter().zip(&self.follows);
        calls.map(move |(call, follows)| {
            (call, LaunchContext::Capture(if *follows { sizes } else { &self.sizes }))
        })
    }
}

impl Replayable for CpuCaptured {
    fn shape(&self) -> GraphShape {
        let calls = self.calls.len() as u64;
        GraphShape { launches: calls, nodes: calls, programmatic_edges: 0 }
    }

    fn addresses(&self) -> Vec<BoundAddress<'_>> {
        let launches = self
            .calls
            .iter()
            .map(|call| (call.name.as_str(), call.operands.iter().map(|operand| &operand.at)));
        binding::addresses(launches, &self.ends)
    }
}
