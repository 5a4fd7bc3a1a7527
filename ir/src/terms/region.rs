//! Regions: row programs that a lowering turns into one kernel.

use crate::entity::Symbol;
use crate::graph::Graph;

/// How a region's parameter sees its operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum ParamMode {
    /// One row: the operand without its outermost dimension, which is the region's symbol.
    Row,
    /// The whole operand, for gathers and for weights.
    Whole,
    /// A whole state that the body scatters into.
    Mut,
}

/// A row program: for each row of `over`, the body computes one row of each result.
///
/// The body is a graph of primitives on one row (shapes without the outer symbol), whose inputs
/// are the parameters in the order of the node's operands and whose outputs are the rows of the
/// node's results. It has neither weights nor states of its own, and its symbols are those of the
/// graph around it, with the same ids. Loops are not stored: a lowering groups the statements of
/// one index space between reductions.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Region {
    /// The symbol whose rows it iterates over.
    pub over: Symbol,
    /// For each operand, how the body sees it.
    pub params: Vec<ParamMode>,
    /// The program of one row.
    pub body: Graph,
}

impl Region {
    /// The operand positions that the body scatters into, ascending.
    pub fn mutated_params(&self) -> Vec<usize> {
        (0..self.params.len()).filter(|&i| self.params[i] == ParamMode::Mut).collect()
    }
}
