//! What a model counts while it runs.

use crate::artifact_store::CompileCounts;
use crate::dispatch::FallbackReason;
use crate::mode::StepMode;
use crate::model::GraphKey;
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::tuning::TuningReport;
use serde::Serializer;
use std::collections::BTreeMap;
use std::time::Duration;

/// Counts since the model was built or reset.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Statistics {
    /// Steps run.
    pub steps: u64,
    /// Steps by how they ran: launched, piecewise, full.
    pub steps_by_mode: [u64; 3],
    /// Steps launched although their mode would replay, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Replays of pieces by size.
    #[serde(serialize_with = "by_name")]
    pub piece_replays: BTreeMap<PieceSize, u64>,
    /// Replays of whole steps: by sequences and query length where they are uniform batches, by
    /// tokens where not.
    #[serde(serialize_with = "by_name")]
    pub full_replays: BTreeMap<PieceSize, u64>,
    /// Tokens that steps brought.
    pub real_tokens: u64,
    /// Tokens that steps ran, padding included.
    pub padded_tokens: u64,
    /// Time from entering a submit to leaving it.
    pub submit_time: Duration,
    /// Graphs captured.
    pub captures: u64,
    /// Graphs captured that replaced one that was there before; they count as captured too.
    pub recaptures: u64,
    /// Captures that failed.
    pub capture_failures: u64,
    /// Replays that were refused when they were submitted; what they hold was launched.
    pub refused_replays: u64,
    /// How often the device was lost and opened anew.
    pub recoveries: u64,
    /// What was chosen by measurement when the model was built, and what was remembered.
    pub tuning: TuningReport,
    /// What was compiled when the model was built, and what came from the cache.
    pub compile: CompileCounts,
}

impl Statistics {
    /// The share of tokens run that were padding.
    pub fn padding_share(&self) -> f64 {
        if self.padded_tokens == 0 {
            return 0.0;
        }
        (self.padded_tokens - self.real_tokens) as f64 / self.padded_tokens as f64
    }

    /// Steps that replayed, piecewise or full.
    pub fn replayed_steps(&self) -> u64 {
        self.steps_by_mode[StepMode::Piecewise as usize]
            + self.steps_by_mode[StepMode::Full as usize]
    }

    pub(crate) fn count_step(&mut self, mode: StepMode, real: u64, padded: u64, time: Duration) {
        self.steps += 1;
        self.steps_by_mode[mode as usize] += 1;
        self.real_tokens += real;
        self.padded_tokens += padded.max(real);
        self.submit_time += time;
    }

    pub(crate) fn count_replay(&mut self, graph: GraphKey) {
        let counts = match graph {
            GraphKey::Full(_) => &mut self.full_replays,
            GraphKey::Piece { .. } => &mut self.piece_replays,
        };
        *counts.entry(graph.size()).or_default() += 1;
    }

    pub(crate) fn count_fallback(&mut self, reason: FallbackReason) {
        *self.fallbacks.entry(reason.name()).or_default() += 1;
    }

    /// Makes the entries that steps count in, so that counting allocates nothing.
    pub(crate) fn prepare(
        &mut self,
        piece_sizes: impl Iterator<Item = PieceSize>,
        full_sizes: impl Iterator<Item = PieceSize>,
    ) {
        for reason in FallbackReason::ALL {
            self.fallbacks.entry(reason.name()).or_default();
        }
        for size in piece_sizes {
            self.piece_replays.entry(size).or_default();
        }
        for size in full_sizes {
            self.full_replays.entry(size).or_default();
        }
    }
}

/// A map by what its keys are called, as JSON wants them.
fn by_name<S: Serializer>(counts: &BTreeMap<PieceSize, u64>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter().map(|(size, count)| (size.to_string(), count)))
}
