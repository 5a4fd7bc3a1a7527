//! The module: a graph and, as passes go, its pieces, slots and offsets.

mod piece;
mod plan;

pub use piece::{PieceUse, Step, Stitch, UniquePiece};
pub use plan::{ArenaLayout, LiveRange, SlotData, SlotKind, SlotTable};

use crate::entity::{Entity, Symbol};
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

    /// The graph of a whole step, which pieces and plan refer to by node and value.
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

    /// Where each slot lies in the arena; `None` before the pass `plan`.
    pub fn layout(&self) -> Option<&ArenaLayout> {
        self.layout.as_ref()
    }

    /// Puts the slots at these offsets of the arena.
    pub fn set_layout(&mut self, layout: ArenaLayout) {
        self.layout = Some(layout);
    }

    /// Sets the bound of a symbol that counts rows of states alone: no slot depends on it, so
    /// pieces, slots and offsets stay as they are.
    pub fn set_state_rows(&mut self, symbol: Symbol, max: u64) {
        let pieces = self.stitch.iter_mut().flat_map(|stitch| stitch.unique.values_mut());
        for graph in pieces.map(|piece| &mut piece.graph).chain([&mut self.graph]) {
            let min = graph.symbols()[symbol].min.min(max);
            graph.set_symbol_bounds(symbol, min, max);
        }
        if let Some(layout) = &mut self.layout {
            layout.bounds[symbol.index()] = max;
        }
    }

    /// The graph, without pieces, slots and offsets.
    pub fn into_graph(self) -> Graph {
        self.graph
    }
}
