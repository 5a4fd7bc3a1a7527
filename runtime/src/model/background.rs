//! Capturing between steps: a little after each, what most steps have wanted first.

use super::CaptureWhen;
use super::CompiledModel;
use super::error::ModelError;
use super::graphs::{GraphKey, OnCaptureFailure};
use piecewise_backend::device::Device;
use std::time::{Duration, Instant};

/// The share of the time from step to step that captures may take.
const SHARE: u32 = 4;

/// After so many steps in which no graph fitted into the share, one is captured all the same: fewer
/// than one step of a hundred waits for that.
const PATIENCE: u32 = 128;

/// How far captures between steps have come.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// Whether every listed graph is ready or disabled.
    is_done: bool,
    last_step: Option<Instant>,
    /// The smoothed time from step to step.
    interval: Duration,
    /// What the last capture of a whole step took, and of a piece.
    cost: [Duration; 2],
    steps_since: u32,
}

impl Background {
    /// There may be something to capture.
    pub(super) fn wake(&mut self) {
        self.is_done = false;
    }

    fn note_step(&mut self, now: Instant) {
        if let Some(last) = self.last_step.replace(now) {
            let interval = now.saturating_duration_since(last);
            self.interval = match self.interval {
                Duration::ZERO => interval,
                smooth => (smooth * 7 + interval) / 8,
            };
        }
        self.steps_since = self.steps_since.saturating_add(1);
    }

    fn cost(&mut self, key: GraphKey) -> &mut Duration {
        &mut self.cost[usize::from(matches!(key, GraphKey::Piece { .. }))]
    }
}

impl<D: Device> CompiledModel<D> {
    /// After a step was submitted: captures what fits into a share of a step's time.
    pub(super) fn capture_between_steps(&mut self) -> Result<(), ModelError> {
        if self.capture_when != CaptureWhen::Background || self.background.is_done {
            return Ok(());
        }
        let started = Instant::now();
        self.background.note_step(started);
        let budget = self.background.interval / SHARE;
        while let Some(key) = self.most_wanted() {
            let expected = started.elapsed() + *self.background.cost(key);
            if expected > budget && self.background.steps_since < PATIENCE {
                break;
            }
            let began = Instant::now();
            self.capture(key, OnCaptureFailure::Launch)?;
            *self.background.cost(key) = began.elapsed();
            if expected > budget {
                self.background.steps_since = 0;
            }
        }
        Ok(())
    }

    /// Captures the listed graph that most steps have wanted, if one is neither ready nor disabled:
    /// for a moment in which nothing else is to be done. Whether there was one; a failure is counted
    /// and steps are launched.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn capture_next(&mut self) -> Result<bool, ModelError> {
        let Some(key) = self.most_wanted() else { return Ok(false) };
        self.capture(key, OnCaptureFailure::Launch)?;
        Ok(true)
    }

    /// The graph to capture next: the one that most steps have wanted, the largest of those.
    fn most_wanted(&mut self) -> Option<GraphKey> {
        let Self { graphs, capture_attempts, .. } = self;
        let mut most: Option<(u64, GraphKey)> = None;
        for key in graphs.keys() {
            let Some(slot) = graphs.slot_mut(key) else { continue };
            let misses = slot.counts().misses;
            if slot.wants_capture(*capture_attempts) && most.is_none_or(|(m, _)| misses > m) {
                most = Some((misses, key));
            }
        }
        self.background.is_done = most.is_none();
        most.map(|(_, key)| key)
    }
}
