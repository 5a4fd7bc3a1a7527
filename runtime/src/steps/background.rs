//! Capturing between steps: a little after each, what steps gain most of first.

use super::compiled::CompiledModel;
use super::pace::{Missing, Pace};
use crate::words::{GraphKey, ModelError, OnCaptureFailure};

impl CompiledModel {
    /// After a step was submitted, where graphs are captured so and some are missing: captures what fits into a share of a step's time.
    pub(super) fn capture_between_steps(&mut self) -> Result<(), ModelError> {
        let clock = self.device.clock();
        let mut began = clock();
        self.background.note_step(began);
        while let Some(key) = self.most_wanted().filter(|key| self.background.allows(*key)) {
            self.capture(key, OnCaptureFailure::Launch)?;
            let ended = clock();
            self.background.note_capture(key, ended - began);
            began = ended;
        }
        Ok(())
    }

    /// Captures the listed graph that steps gain most of, if one is neither ready nor disabled: for a
    /// moment in which nothing else is to be done. Whether there was one; a failure is counted and
    /// steps are launched.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn capture_next(&mut self) -> Result<bool, ModelError> {
        let Some(key) = self.most_wanted() else { return Ok(false) };
        self.capture(key, OnCaptureFailure::Launch)?;
        Ok(true)
    }

    /// The graph to capture next, the largest of several that steps gain as much of.
    fn most_wanted(&mut self) -> Option<GraphKey> {
        let Self { graphs, members, background, .. } = self;
        let Pace { listed, lacking, is_done, .. } = background;
        // A step replays every stretch over the same rows at one size.
        let together = |key| match key {
            GraphKey::Full(_) => None,
            GraphKey::Stretch { first, size, .. } => Some((members.list[first].class()?, size)),
        };
        let mut misses = |key| {
            let slot = graphs.slot_mut(key)?;
            slot.wants_capture(self.capture_attempts).then(|| slot.counts().misses)
        };
        lacking.clear();
        for &key in listed.iter().filter(|&&key| misses(key).is_some()) {
            together(key).into_iter().for_each(|pieces| *lacking.entry(pieces).or_default() += 1);
        }
        let missing = listed.iter().filter_map(|&key| {
            let misses = misses(key)?;
            let lacking = together(key).map_or(1, |pieces| lacking[&pieces]);
            Some(Missing { key, misses, lacking })
        });
        let most = missing.reduce(|a, b| if b.order(&a).is_gt() { b } else { a });
        *is_done = most.is_none();
        most.map(|graph| graph.key)
    }
}
