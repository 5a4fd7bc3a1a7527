//! Measuring what only a measurement can choose, to its end, for all starts to come.

use super::super::error::AssemblyError;
use super::Planned;
use piecewise_backend::tuning::{TuneMode, TuningReport};
use piecewise_runtime::device::Gain;
use piecewise_runtime::words::{BuildTimes, CaptureWhen, CompileLevel};
use serde::Serialize;
use std::time::Duration;

/// What measuring found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tuned {
    /// Each choice that was measured, now or before.
    pub gains: Vec<Gain>,
    /// How many pieces were measured, were known and are left, and the time that it took.
    pub report: TuningReport,
    /// What it was measured on, in words.
    pub device: String,
    /// The graph mode whose steps were measured.
    pub graph_mode: &'static str,
    /// What building the model took, the measuring apart.
    pub times: BuildTimes,
}

impl Planned {
    /// Builds the model, measures each choice that the store remembers nothing of, and has the store
    /// remember what is faster by more than the spread, and of the rest that nothing is. This goes on
    /// to its end, unless `tune_seconds` says how long it may take.
    ///
    /// # Errors
    /// When the level fuses nothing, so that there is nothing to measure, or as for
    /// [`Self::engine`](Planned::engine).
    pub fn tuned(mut self) -> Result<Tuned, AssemblyError> {
        let config = &mut self.settings.config;
        if matches!(config.level, CompileLevel::Eager | CompileLevel::Trace) {
            return Err(AssemblyError::NothingToTune { level: config.level.name() });
        }
        (config.tune, config.capture) = (TuneMode::Measure, CaptureWhen::Startup);
        let roles = self.roles().ok();
        let mut options = self.options_there(roles.as_ref())?;
        if self.settings.config.tune_seconds.is_none() {
            options.tune_budget = Duration::MAX;
        }
        let model = self.build(options)?;
        Ok(Tuned {
            gains: model.gains(),
            report: model.statistics().tuning,
            device: model.describe_device(),
            graph_mode: model.dispatcher().mode.name(),
            times: model.build_times(),
        })
    }
}
