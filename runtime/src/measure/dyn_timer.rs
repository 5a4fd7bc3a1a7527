//! A step timer whose device is chosen at run time.

use super::error::MeasureError;
use super::plan::PlannedStep;
use super::timeline::Timeline;
use super::timer::{CaptureReport, StepRecord, StepTimer};
use crate::artifact_store::CompileCounts;
use crate::dispatch::StepSizes;
use crate::mode::GraphMode;
use crate::model::{BuildTimes, Ledger, Progress, StepLaunch};
use piecewise_backend::measure::{MeasuredDevice, ReadBandwidth};
use piecewise_ir::module::Module;
use std::time::Duration;

/// [`StepTimer`] without its device in its type.
pub trait DynStepTimer: std::fmt::Debug + Send {
    /// [`StepTimer::run`].
    ///
    /// # Errors
    /// As there.
    fn run(
        &mut self,
        steps: &[PlannedStep],
        launched: bool,
    ) -> Result<Vec<StepRecord>, MeasureError>;

    /// [`StepTimer::recapture`].
    ///
    /// # Errors
    /// As there.
    fn recapture(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CaptureReport, MeasureError>;

    /// [`StepTimer::timeline`].
    ///
    /// # Errors
    /// As there.
    fn timeline(&mut self, sizes: StepSizes) -> Result<Timeline, MeasureError>;

    /// [`StepTimer::bare_submit`].
    ///
    /// # Errors
    /// As there.
    fn bare_submit(&mut self, record: &StepRecord) -> Result<Option<Duration>, MeasureError>;

    /// [`crate::model::CompiledModel::step_launches`].
    fn step_launches(&self, sizes: StepSizes) -> Vec<StepLaunch>;

    /// [`crate::model::CompiledModel::leave_out`].
    fn leave_out(&mut self, is_left_out: &dyn Fn(&StepLaunch) -> bool) -> usize;

    /// [`MeasuredDevice::read_bandwidth`].
    ///
    /// # Errors
    /// As there.
    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, MeasureError>;

    /// [`MeasuredDevice::cache_bytes`].
    fn cache_bytes(&self) -> u64;

    /// [`piecewise_backend::device::Device::model`].
    fn device_model(&self) -> String;

    /// What was compiled, and what the store had.
    fn compile_counts(&self) -> CompileCounts;

    /// How long the parts of building took.
    fn build_times(&self) -> BuildTimes;

    /// What the model holds in memory.
    fn ledger(&self) -> Ledger;

    /// The model's module: graph, pieces and plan.
    fn module(&self) -> &Module;
}

impl<D: MeasuredDevice> DynStepTimer for StepTimer<D> {
    fn run(
        &mut self,
        steps: &[PlannedStep],
        launched: bool,
    ) -> Result<Vec<StepRecord>, MeasureError> {
        StepTimer::run(self, steps, launched)
    }

    fn recapture(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CaptureReport, MeasureError> {
        StepTimer::recapture(self, mode, progress)
    }

    fn timeline(&mut self, sizes: StepSizes) -> Result<Timeline, MeasureError> {
        StepTimer::timeline(self, sizes)
    }

    fn bare_submit(&mut self, record: &StepRecord) -> Result<Option<Duration>, MeasureError> {
        StepTimer::bare_submit(self, record)
    }

    fn step_launches(&self, sizes: StepSizes) -> Vec<StepLaunch> {
        self.model().step_launches(sizes)
    }

    fn leave_out(&mut self, is_left_out: &dyn Fn(&StepLaunch) -> bool) -> usize {
        self.model_mut().leave_out(is_left_out)
    }

    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, MeasureError> {
        Ok(self.model_mut().device_mut().read_bandwidth()?)
    }

    fn cache_bytes(&self) -> u64 {
        self.model().device().cache_bytes()
    }

    fn device_model(&self) -> String {
        self.model().device().model()
    }

    fn compile_counts(&self) -> CompileCounts {
        self.model().statistics().compile.clone()
    }

    fn build_times(&self) -> BuildTimes {
        self.model().build_times()
    }

    fn ledger(&self) -> Ledger {
        self.model().memory().ledger
    }

    fn module(&self) -> &Module {
        self.model().module()
    }
}
