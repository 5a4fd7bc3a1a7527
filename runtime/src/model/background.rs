//! Capturing between steps: a little after each, what most steps have wanted first.

use super::CompiledModel;
use super::build::CaptureWhen;
use super::error::ModelError;
use super::graphs::{GraphKey, OnCaptureFailure};
use super::pace::{PATIENCE, SHARE};
use piecewise_backend::device::Device;
use std::time::Instant;

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
