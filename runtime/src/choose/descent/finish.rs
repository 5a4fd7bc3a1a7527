//! The end of a descent: what was found part by part is held against the step as it was.

use super::{Descent, passed_over};
use crate::choose::rounds::{compare, deciding, noise};
use crate::device::{Place, Record};
use crate::words::ModelError;
use piecewise_backend::artifact::Choice;

impl Descent<'_> {
    /// Holds the step with all that was found against the step as it was, and goes back to that unless
    /// it is slower by more than the noise. What was measured, to be remembered.
    pub(in crate::choose) fn finish(mut self) -> Result<Vec<(Place, Record)>, ModelError> {
        let device = &mut self.model.device;
        let best = self.best.as_ref().unwrap_or(&self.unmeasured);
        let mut check = || {
            let noise = noise(&mut **device, &self.unmeasured)?.max(self.noise);
            let [_, us] = compare(&mut **device, [&self.unmeasured, best], 1)?;
            let times = compare(&mut **device, [&self.unmeasured, best], deciding(us))?;
            Ok((times, noise))
        };
        let checked = passed_over(check(), &self.step.label)?;
        let ([unmeasured_us, mut chosen_us], spread, is_faster) = match checked {
            Some((times, noise)) => (times, noise, times[1] < times[0] * (1.0 - noise)),
            None => ([0.0; 2], self.noise, false),
        };
        if !is_faster {
            chosen_us = unmeasured_us;
            if self.best.is_some() {
                tracing::debug!("{}: what was found is no faster in all", self.step.label);
            }
            for (member, at, program) in std::mem::take(&mut self.replaced) {
                self.model.members.list[member].sized[at].1 = program;
            }
            for (product, before) in std::mem::take(&mut self.preferred) {
                self.prefer(&product, before)?;
            }
            for (&place, found) in &self.found {
                self.model.origin.choices.get_mut(place).choice = found.clone();
            }
            // What a descent that was cut short left is nothing to remember.
            self.measured.retain(|(place, _)| self.found[place] == Choice::default());
            for (_, record) in &mut self.measured {
                record.choice = Choice::default();
                record.algorithms.clear();
                record.gained = 0.0;
            }
        }
        for (_, record) in &mut self.measured {
            (record.unmeasured_us, record.chosen_us) = (unmeasured_us, chosen_us);
            // What is kept was held against the noise of before, with nothing else that was found.
            record.spread = if record.gained > 0.0 { self.noise } else { spread };
        }
        Ok(self.measured)
    }
}
