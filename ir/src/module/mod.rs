//! The module: a graph and, as passes go, its pieces, slots and offsets.

mod piece;
mod plan;

pub use piece::{PieceUse, Step, Stitch, UniquePiece};
pub use plan::{ArenaLayout, LiveRange, SlotData, SlotKind, SlotTable};

use crate::graph::Graph;

/// A graph with as much of its plan as the passes so far have made. A later part is dropped when
/// a pass changes an earlier one.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Module {
    graph: Graph,
    stitch: Option<Stitch>,
    slots: Option<SlotTable>,
    layout: Option<ArenaLayout>,
}

impl Module {
    /// A module of a graph alone.
    pub fn new(graph: Graph) -> Self {
        Self { graph, stitch: None, slots: None, layout: None }
    }

    /// The whole step's graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph, to change it; pieces, slots and offsets are dropped.
    pub fn graph_mut(&mut self) -> &mut Graph {
        self.stitch = None;
        self.slots = None;
        self.layout = None;
        &mut self.graph
    }

    /// Pieces and their order, after the splitter.
    pub fn stitch(&self) -> Option<&Stitch> {
        self.stitch.as_ref()
    }

    /// Sets pieces and their order; slots and offsets are dropped.
    pub fn set_stitch(&mut self, stitch: Stitch) {
        self.stitch = Some(stitch);
        self.slots = None;
        self.layout = None;
    }

    /// Slots and lifetimes, after destination passing.
    pub fn slots(&self) -> Option<&SlotTable> {
        self.slots.as_ref()
    }

    /// Sets slots and lifetimes; offsets are dropped.
    pub fn set_slots(&mut self, slots: SlotTable) {
        self.slots = Some(slots);
        self.layout = None;
    }

    /// Offsets, after the planner.
    pub fn layout(&self) -> Option<&ArenaLayout> {
        self.layout.as_ref()
    }

    /// Sets offsets.
    pub fn set_layout(&mut self, layout: ArenaLayout) {
        self.layout = Some(layout);
    }

    /// The graph alone.
    pub fn into_graph(self) -> Graph {
        self.graph
    }
}
