//! Bytes that a model takes, by what takes them.

use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::ArenaLayout;
use piecewise_passes::plan::ALIGN;

/// Bytes that a model takes, known before anything is allocated: exact for its data, estimated for
/// code and graphs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Ledger {
    /// Slots of the arena, by the plan at the largest sizes.
    pub slots: u64,
    /// Scratch of the arena: the largest need of any launch list.
    pub scratch: u64,
    /// Weights, derived ones included.
    pub weights: u64,
    /// States: the KV cache and sampled ids.
    pub states: u64,
    /// Code of the kernels, by the size of their images.
    pub modules: u64,
    /// Captured graphs, by a model of what a launch in one takes.
    pub graphs: u64,
    /// The context of the device and its libraries, which are there before a model looks at what is
    /// free, and once for all models of a process: not in the sum.
    pub context: u64,
    /// Pinned blocks of the host: no memory of the device.
    pub pinned: u64,
}

impl Ledger {
    /// The ledger of a graph with its layout and the scratch need.
    pub fn new(graph: &Graph, layout: &ArenaLayout, scratch: u64, bounds: &[u64]) -> Self {
        let bytes = |value: Value| graph.ty(value).bytes(bounds).next_multiple_of(ALIGN);
        Self {
            slots: layout.bytes,
            scratch: scratch.next_multiple_of(ALIGN),
            weights: graph.weights().iter().map(|w| bytes(w.value)).sum(),
            states: graph.states().iter().map(|s| bytes(s.value)).sum(),
            ..Self::default()
        }
    }

    /// All of it that the model takes on the device.
    pub fn total(&self) -> u64 {
        let data = self.slots + self.scratch + self.weights + self.states;
        data + self.modules + self.graphs
    }
}
