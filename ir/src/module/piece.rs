//! Pieces: what is captured, and the order of pieces and split ops in a step.

use crate::entity::{Arena, Node, PieceId, Symbol, UniquePieceId, Value};
use crate::graph::Graph;

/// A member of the step up to the names of its values, weights and states: a piece, or a split op
/// or prologue op as a graph of one node, or of a split op among the regions that it may absorb.
/// Compiled, tuned and cached once.
///
/// It is a graph: its inputs are boundary values and inputs of the step; its weights are
/// plain tensors (`"0"`, `"1"`, in order of first use), for how they come about is the use's; its states are declared once each; its outputs are the
/// values that something after it reads. Operands are named by position: inputs, weights,
/// states, then the results of the nodes in program order (see [`UniquePiece::operands`]).
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct UniquePiece {
    /// The symbol whose rows it iterates over; `None` only for an op without such rows.
    pub over: Option<Symbol>,
    /// A graph of its own: inputs, weights, states, nodes, outputs.
    pub graph: Graph,
    /// blake3 of the canonical text of `graph` and `over`.
    pub hash: [u8; 32],
}

impl UniquePiece {
    /// The values by operand position: inputs, weights, states, then the results of the nodes in
    /// program order (outputs and locals alike).
    pub fn operands(&self) -> Vec<Value> {
        let graph = &self.graph;
        let declared = graph.inputs().iter().map(|i| i.value);
        let weights = graph.weights().iter().map(|w| w.value);
        let states = graph.states().iter().map(|s| s.value);
        let results = graph.nodes().flat_map(|n| graph.node(n).results.iter().copied());
        declared.chain(weights).chain(states).chain(results).collect()
    }
}

/// Where in the graph a unique piece stands, and with which values.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PieceUse {
    /// The unique piece that is bound for this use.
    pub unique: UniquePieceId,
    /// The nodes of the module's graph that it stands for, in the order of the unique piece.
    pub nodes: Vec<Node>,
    /// For each operand position of the unique piece, the value of the module's graph.
    pub operands: Vec<Value>,
}

/// A member of the step's sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[derive(serde::Serialize, serde::Deserialize)]
pub enum Step {
    /// A custom op that depends on inputs alone and runs at the start of the step; neither piece
    /// nor split op.
    Prologue(PieceId),
    /// A piece: launches that may be captured as a graph.
    Piece(PieceId),
    /// A split op, among the regions that it may absorb: runs between pieces.
    Split(PieceId),
}

impl Step {
    /// Its word in the textual plan.
    pub fn keyword(self) -> &'static str {
        self.into()
    }

    /// What it is, for people: `prologue`, `piece` or `split op`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Prologue(_) => "prologue",
            Self::Piece(_) => "piece",
            Self::Split(_) => "split op",
        }
    }

    /// The use, whichever it is.
    pub fn id(self) -> PieceId {
        match self {
            Self::Prologue(id) | Self::Piece(id) | Self::Split(id) => id,
        }
    }
}

/// The members of a step and their order.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Stitch {
    /// What is compiled, each once.
    pub unique: Arena<UniquePieceId, UniquePiece>,
    /// Their uses, in the order of the step.
    pub uses: Arena<PieceId, PieceUse>,
    /// The whole step in order.
    pub steps: Vec<Step>,
}

impl Stitch {
    /// The nodes of the module's graph in the order in which the step runs them: the positions
    /// of [`super::LiveRange`].
    pub fn node_order(&self) -> Vec<Node> {
        self.steps.iter().flat_map(|step| self.uses[step.id()].nodes.iter().copied()).collect()
    }

    /// How many pieces a step has, those that are equal counted each time.
    pub fn piece_count(&self) -> usize {
        self.steps.iter().filter(|s| matches!(s, Step::Piece(_))).count()
    }

    /// The number of split ops.
    pub fn split_op_count(&self) -> usize {
        self.steps.iter().filter(|s| matches!(s, Step::Split(_))).count()
    }

    /// The unique pieces in order of first use, split ops and prologue ops left out.
    pub fn unique_pieces(&self) -> Vec<UniquePieceId> {
        let mut seen = Vec::new();
        for step in &self.steps {
            if let Step::Piece(id) = *step
                && !seen.contains(&self.uses[id].unique)
            {
                seen.push(self.uses[id].unique);
            }
        }
        seen
    }
}
