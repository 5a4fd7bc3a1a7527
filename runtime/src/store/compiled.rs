//! The artifacts of a model.

use crate::words::{CompileCounts, LoweringSize};
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::Footprint;
use piecewise_backend::weights::WeightLayout;
use std::time::Duration;

/// The artifacts of a model.
#[derive(Clone, Debug)]
pub struct CompiledPieces {
    /// By unique piece, its sizes.
    pub sizes: Vec<Vec<LoweringSize>>,
    /// By unique piece, in the order of its sizes.
    pub artifacts: Vec<Vec<Artifact>>,
    /// By unique piece, the layouts of its weights.
    pub layouts: Vec<Vec<WeightLayout>>,
    /// The identity of the compiler that made them.
    pub compiler: String,
    /// What code and graphs take on a device of the target.
    pub footprint: Footprint,
    /// What was compiled and what was reused.
    pub counts: CompileCounts,
    /// From the first look into the store to the last artifact.
    pub time: Duration,
}

impl CompiledPieces {
    /// Adds what was compiled for more sizes.
    pub(crate) fn append(&mut self, more: Self) {
        for (unique, (sizes, artifacts)) in more.sizes.into_iter().zip(more.artifacts).enumerate() {
            self.sizes[unique].extend(sizes);
            self.artifacts[unique].extend(artifacts);
        }
    }

    /// Keeps so many sizes of each unique piece.
    pub(crate) fn truncate(&mut self, counts: &[usize]) {
        for (unique, &count) in counts.iter().enumerate() {
            self.sizes[unique].truncate(count);
            self.artifacts[unique].truncate(count);
        }
    }
}
