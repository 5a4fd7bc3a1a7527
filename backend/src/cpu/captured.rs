//! Captured graphs of the CPU: what a replay runs.

use super::program::BoundCall;
use crate::binding;
use crate::device::BoundAddress;
use std::sync::Arc;

/// A captured graph: calls with raw addresses and the sizes they were captured for. It keeps
/// alive the memory and kernels that it points to.
#[derive(Debug)]
pub struct CpuCaptured {
    pub(super) calls: Vec<Arc<BoundCall>>,
    /// Where the calls of each program end.
    pub(super) ends: Vec<usize>,
    pub(super) sizes: Vec<u64>,
}

impl CpuCaptured {
    pub(super) fn addresses(&self) -> Vec<BoundAddress<'_>> {
        let launches = self
            .calls
            .iter()
            .map(|call| (call.name.as_str(), call.operands.iter().map(|operand| &operand.at)));
        binding::addresses(launches, &self.ends)
    }
}
