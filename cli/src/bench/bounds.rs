//! What measured steps may need.

use piecewise_runtime::words::GraphMode;

/// The lists and bounds that a subject is built for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    /// Sizes in tokens, ascending.
    pub(super) tokens: Vec<u64>,
    /// Decode batches, ascending.
    pub(super) batches: Vec<u64>,
    /// Tokens of each of their sequences, ascending.
    pub(super) query_lengths: Vec<u64>,
    /// The most tokens of a step.
    pub(super) max_tokens: u64,
    /// Positions of each sequence, whole pages.
    pub(super) positions: Vec<u64>,
    /// The mode whose programs there are.
    pub(super) mode: GraphMode,
}
