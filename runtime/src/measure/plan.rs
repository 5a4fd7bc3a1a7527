//! What a measured step brings, written down before anything runs.

use crate::batch::ChunkRows;

/// Where the tokens of a chunk come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepTokens {
    /// Ids that the host knows.
    Ids(Vec<u32>),
    /// One token: what the sequence's last row sampled, taken on the device.
    Feedback,
}

/// The tokens that one sequence brings to a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedChunk {
    /// One of [`ModelTimer`](super::timer::ModelTimer)'s own, from 0.
    pub sequence: usize,
    /// The position of the first token.
    pub start: u64,
    /// Ids, or the id that the step before sampled.
    pub tokens: StepTokens,
    /// The rows that are sampled from.
    pub rows: ChunkRows,
}

/// A step: its chunks in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlannedStep {
    /// One for each sequence that takes part.
    pub chunks: Vec<PlannedChunk>,
}

impl PlannedChunk {
    /// How many tokens it brings; one where that is the id sampled before.
    pub fn count(&self) -> u64 {
        match &self.tokens {
            StepTokens::Ids(ids) => ids.len() as u64,
            StepTokens::Feedback => 1,
        }
    }
}

impl PlannedStep {
    /// Over all chunks: the rows of the step's inputs.
    pub fn tokens(&self) -> u64 {
        self.chunks.iter().map(PlannedChunk::count).sum()
    }

    /// Positions that the step attends to, this step's among them: each chunk's, once.
    pub fn positions(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.start + chunk.count()).sum()
    }
}
