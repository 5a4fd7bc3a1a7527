//! How much time captures between steps may take.

use super::graphs::GraphKey;
use std::time::{Duration, Instant};

/// The share of the time from step to step that captures may take.
pub(super) const SHARE: u32 = 4;

/// After so many steps in which no graph fitted into the share, one is captured all the same: fewer
/// than one step of a hundred waits for that.
pub(super) const PATIENCE: u32 = 128;

/// How far captures between steps have come.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Whether every listed graph is ready or disabled.
    pub(super) is_done: bool,
    last_step: Option<Instant>,
    /// The smoothed time from step to step.
    pub(super) interval: Duration,
    /// What the last capture of a whole step took, and of a piece.
    cost: [Duration; 2],
    pub(super) steps_since: u32,
}

impl Pace {
    /// There may be something to capture.
    pub(super) fn wake(&mut self) {
        self.is_done = false;
    }

    pub(super) fn note_step(&mut self, now: Instant) {
        if let Some(last) = self.last_step.replace(now) {
            let interval = now.saturating_duration_since(last);
            self.interval = match self.interval {
                Duration::ZERO => interval,
                smooth => (smooth * 7 + interval) / 8,
            };
        }
        self.steps_since = self.steps_since.saturating_add(1);
    }

    pub(super) fn cost(&mut self, key: GraphKey) -> &mut Duration {
        &mut self.cost[usize::from(matches!(key, GraphKey::Piece { .. }))]
    }
}
