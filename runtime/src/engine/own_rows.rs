//! Room for rows of the graph's own kinds: what would bring more of them than a step holds goes into
//! several steps.
//!
//! How many rows a batch brings only the functions of the ops know, so a plan is tried as a batch
//! before it is submitted.

use super::BatchingEngine;
use super::sequence::Planned;
use piecewise_backend::device::Device;

/// The most of `0..=most` that fits, where nothing does and more never fits where less does not.
pub(super) fn largest(most: u64, mut fits: impl FnMut(u64) -> bool) -> u64 {
    let (mut fitting, mut above) = (0, most + 1);
    while above - fitting > 1 {
        let middle = fitting + (above - fitting) / 2;
        if fits(middle) { fitting = middle } else { above = middle }
    }
    fitting
}

impl<D: Device> BatchingEngine<D> {
    /// Shortens the plan to what a step has room for. Nobody passes one that finds no room, so that
    /// it does not wait for ever. One that no step has room for is planned alone: it is the one that
    /// the step fails for.
    pub(super) fn fit_own_rows(&mut self) {
        let tries = self.roles.has_own_rows() && !self.plan.is_empty();
        if !tries || self.fits(self.plan.len(), None) {
            return;
        }
        let kept = largest(self.plan.len() as u64 - 1, |n| self.fits(n as usize, None)) as usize;
        let Planned { request, tokens } = self.plan[kept];
        let part = |tokens| Planned { request, tokens };
        if !self.fits(0, Some(part(1))) {
            self.plan.clear();
            self.plan.push(part(1));
            return;
        }
        let tokens =
            largest(tokens.saturating_sub(1), |tokens| self.fits(kept, Some(part(tokens))));
        self.plan.truncate(kept);
        self.plan.extend((tokens > 0).then(|| part(tokens)));
    }

    /// Whether a step has room for the first `count` of the plan, and for one more beside them.
    fn fits(&mut self, count: usize, more: Option<Planned>) -> bool {
        let Self { plan, sequences, batch, .. } = self;
        batch.clear();
        for planned in plan[..count].iter().chain(&more) {
            let Some(sequence) = sequences.get(&planned.request) else { continue };
            sequence.bring(planned.tokens, batch);
        }
        batch.has_room()
    }
}
