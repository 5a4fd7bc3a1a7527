//! Which graphs there are, and what became of each.

use super::shapes::StepSizes;
use piecewise_backend::artifact::PieceSize;
use serde::Serialize;
use std::time::Duration;

/// Where a graph is: `Empty -> Ready -> Stale -> Ready`, and `Disabled`
/// from wherever it fails too often.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphState {
    /// It was never captured; attempts may have failed.
    Empty,
    /// It can be replayed as it is.
    Ready,
    /// It was captured and is there no longer: it was dropped, or a replay of it was refused. The
    /// next step that wants it captures it again.
    Stale,
    /// It failed too often in a row, or memory moved too often, and is tried again when it is told to
    /// be.
    Disabled,
}

/// What became of a graph so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, derive_more::Add, Serialize)]
pub struct GraphCounts {
    /// How often it was replayed, as far as that was submitted.
    pub launches: u64,
    /// Captures that went well, the first and the others.
    pub captures: u64,
    /// Those of them that replaced a graph that was there before.
    pub recaptures: u64,
    /// Captures that failed, and replays that were refused.
    pub failures: u64,
    /// Steps that would have replayed it, had it been there.
    pub misses: u64,
}

/// Which graph of a model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GraphKey {
    /// Of a whole step at these sizes.
    Full(StepSizes),
    /// Of a stretch of the step, at a size of the rows that it iterates over.
    Stretch {
        /// The place of its first member in the step.
        first: usize,
        /// That of its last, the same where it has one.
        last: usize,
        /// Padded rows.
        size: PieceSize,
    },
}

impl GraphKey {
    /// The size of what it holds.
    pub fn size(&self) -> PieceSize {
        match self {
            Self::Full(sizes) => sizes.whole(),
            Self::Stretch { size, .. } => *size,
        }
    }
}

/// A graph, ready or not, as [`crate::steps::CompiledModel::graphs`] tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphReport {
    /// The whole step at its sizes, or a stretch of it at one.
    pub key: GraphKey,
    /// Captured, waiting, failed or switched off.
    pub state: GraphState,
    /// What became of it so far.
    pub counts: GraphCounts,
}

/// What became of several graphs together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct GraphTotals {
    /// Those that can be replayed.
    pub ready: u64,
    /// Those that were never captured.
    pub empty: u64,
    /// Those that are to be captured again.
    pub stale: u64,
    /// Those that are not tried any more.
    pub disabled: u64,
    /// Of whatever state, added up.
    #[serde(flatten)]
    pub counts: GraphCounts,
}

impl GraphTotals {
    /// Of the graphs that a model tells of.
    pub fn of(graphs: &[GraphReport]) -> Self {
        let mut all = Self::default();
        for GraphReport { state, counts, .. } in graphs {
            match state {
                GraphState::Ready => all.ready += 1,
                GraphState::Empty => all.empty += 1,
                GraphState::Stale => all.stale += 1,
                GraphState::Disabled => all.disabled += 1,
            }
            all.counts = all.counts + *counts;
        }
        all
    }
}

/// How much of a step a graph replays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GraphKind {
    /// A whole step.
    Full,
    /// A stretch that iterates over tokens.
    Tokens,
    /// A stretch that iterates over rows that want logits.
    Rows,
    /// A stretch that iterates over rows of the graph's own kind.
    Own,
}

/// What the capture of a graph took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedGraph {
    /// How much of a step it replays.
    pub kind: GraphKind,
    /// Its size: of a whole step, or else in rows of the stretch.
    pub size: PieceSize,
    /// To capture, inspect, instantiate and upload it.
    pub time: Duration,
    /// By how much the device's free memory fell.
    pub bytes: u64,
}
