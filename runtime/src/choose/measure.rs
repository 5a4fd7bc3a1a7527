//! Choosing where a model is built: step by step, as long as there is time.

use super::descent::Descent;
use crate::batch::SyntheticStep;
use crate::device::{BindSite, Choices, RecordKey, WaysOrigin};
use crate::steps::{CompiledModel, MeasuredStep};
use crate::words::{ModelError, Progress};
use piecewise_backend::store::Store;
use piecewise_ir::entity::Entity;
use std::time::Instant;

impl CompiledModel {
    /// Measures the ways of every artifact that a step of a listed size runs and nobody knows anything of,
    /// as long as there is time, in captured steps, however it runs: this changes what is bound. With
    /// made-up `steps` it overwrites what the states hold.
    ///
    /// # Errors
    /// When the device is lost. What can't be bound, captured or replayed is passed over.
    pub(crate) fn measure_choices(
        &mut self,
        steps: &[SyntheticStep],
        store: &dyn Store,
        has_time: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), ModelError> {
        let started = Instant::now();
        let sizes = self.dispatcher.measured_steps();
        let total = sizes.len();
        for (done, (sizes, _)) in sizes.into_iter().enumerate() {
            let mut step = self.measured_step(sizes);
            if self.unmeasured_in(&step).is_empty() {
                continue;
            }
            if !has_time() {
                break;
            }
            progress(Progress::Measuring { done, total, budget: self.tune_budget });
            let pieces = MeasuredStep::new(self, sizes, false);
            if !self.stage_measured(&step, steps)? {
                step = pieces.clone();
                if self.unmeasured_in(&step).is_empty() {
                    continue;
                }
            }
            if !self.measure_step(step, store, has_time)?
                && !self.measure_step(pieces, store, has_time)?
            {
                tracing::debug!(size = %sizes.whole(), "no captured step to measure ways in");
            }
        }
        self.origin.choices.report.time += started.elapsed();
        self.count_unmeasured();
        Ok(())
    }

    /// Descends in a step and keeps what it finds; whether the step could be captured.
    fn measure_step(
        &mut self,
        step: MeasuredStep,
        store: &dyn Store,
        has_time: &mut dyn FnMut() -> bool,
    ) -> Result<bool, ModelError> {
        let module = self.module.clone();
        let Some(stitch) = module.stitch() else { return Ok(false) };
        let Some(mut descent) = Descent::begin(self, stitch, step, has_time)? else {
            return Ok(false);
        };
        descent.descend()?;
        let measured = descent.finish()?;
        let Self { device, symbols, memory, origin, .. } = self;
        let site =
            BindSite { module: &module, stitch, symbols, memory, compiled: &origin.compiled };
        let Choices { by_unique, report, .. } = &mut origin.choices;
        for (place, record) in measured {
            report.measured += 1;
            let key = RecordKey::new(&**device, &site, place);
            report.refused += usize::from(!key.keep(store, &record));
            let chosen = &mut by_unique[place.0.index()][place.1];
            chosen.origin = WaysOrigin::Measured;
            chosen.record = Some(record);
        }
        Ok(true)
    }
}
