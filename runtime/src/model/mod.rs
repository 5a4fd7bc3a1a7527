//! The compiled model: programs bound to one arena, captured graphs, and steps over them.

mod addresses;
mod audit;
mod background;
mod bind;
mod build;
mod capture;
mod choose;
mod clock;
mod compare;
mod face;
mod footprint;
mod given;
mod graphs;
mod late_sizes;
mod launches;
mod limit;
mod lowering;
mod memory;
mod options;
mod origin;
mod pace;
mod pages;
mod pieces;
mod probe;
mod programs;
mod ranges;
mod spans;
mod specialize;
mod staging;
mod step;
mod step_end;
mod step_launches;
mod ways;

pub use choose::{ChosenPart, ChosenWays, Gain, Verdict, WaysOrigin};
pub use face::Model;
pub use graphs::GraphSlot;
pub use lowering::lowering_sizes;
pub use memory::Memory;
pub use options::BuildOptions;
pub use programs::check_layers;
pub use step::{StepOutputs, Ticket};
pub(crate) use step_end::StepEnd;
pub use step_launches::StepLaunch;

use crate::dispatch::{Dispatcher, MeasuredWays};
use crate::stats::Statistics;
use crate::words::{
    BuildTimes, CaptureWhen, Checks, Dispatch, ModelError, OnCaptureFailure, StepTrace,
    SuspendedWeights, SymbolTable,
};
use clock::StepClock;
use given::GivenInputs;
use graphs::GraphSet;
use late_sizes::LateSizes;
use origin::Origin;
use pace::Pace;
use piecewise_backend::device::{Address, Device};
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::module::Module;
use programs::Members;
use ranges::StepRanges;
use spans::Tracer;
use staging::Staging;
use std::sync::Arc;
use std::time::Duration;

/// A model compiled for a device: `Send`, used by one thread at a time, one stream, at most two
/// steps submitted.
#[derive(derive_more::Debug)]
#[debug("CompiledModel on {}, {} graphs, {memory:?}", device.describe(), graphs.ready().count())]
pub struct CompiledModel<D: Device> {
    // Captured graphs and programs go before the device that they live on.
    graphs: GraphSet<D::Captured>,
    members: Members<D::Program>,
    staging: Staging<D>,
    clock: StepClock<D>,
    tracer: Option<Tracer<D>>,
    ranges: Option<StepRanges>,
    memory: Memory,
    /// What everything on the device is made from, once more if it is lost.
    origin: Origin,
    symbols: SymbolTable,
    dispatcher: Dispatcher,
    ways: MeasuredWays,
    module: Arc<Module>,
    stats: Statistics,
    strict: bool,
    capture_when: CaptureWhen,
    on_capture_failure: OnCaptureFailure,
    recapture_limit: u32,
    /// How often memory has moved since the model was built, or its graphs were enabled.
    moves: u32,
    capture_attempts: u32,
    checks: Checks,
    next_step: u64,
    last: Option<Dispatch>,
    read_counts: Vec<u64>,
    given: GivenInputs,
    reduced: Option<String>,
    times: BuildTimes,
    launches_only: bool,
    background: Pace,
    /// Steps before it are lost with the device that they ran on.
    first_step: u64,
    /// Whether what is on the device is gone and not yet made again.
    is_lost: bool,
    suspended: Option<SuspendedWeights>,
    late: Option<LateSizes>,
    /// The key that bounds its memory, and the bytes that it leaves.
    limit: Option<(&'static str, u64)>,
    /// Where the parts of the memory lay when the programs were bound.
    bound_to: [Address; 3],
    /// Whether it is measured which steps padding loses whenever graphs were captured.
    measures_padding: bool,
    /// Whether ways are chosen by measurement.
    tune: TuneMode,
    tune_budget: Duration,
    device: D,
}

impl<D: Device> CompiledModel<D> {
    /// The backend that it was built on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to inspect or edit memory between steps.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Which steps go another way than a replay of their padded size, as it was measured.
    pub fn measured_ways(&self) -> &MeasuredWays {
        &self.ways
    }

    /// Addresses and bytes of everything on the device.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The checks that run with every step.
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// The most rows that a step may want logits for.
    pub fn max_logit_rows(&self) -> u64 {
        self.origin.max_logit_rows
    }

    /// Addresses, to put another reservation in the place of a part, with what it held: the next step
    /// binds its programs to it and has graphs captured again. The one before must stay until then.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Traces the steps to come, or no longer: a mark after each part of a step, which keeps launches of
    /// neighbouring parts from overlapping. A trace begins anew with each call.
    ///
    /// # Errors
    /// When work before failed.
    pub fn trace_steps(&mut self, traces: bool) -> Result<(), ModelError> {
        self.tracer = if traces { Some(Tracer::start(&mut self.device)?) } else { None };
        Ok(())
    }

    /// Lets the profiler that started this process, if one listens to NVTX, hear from now on of each
    /// step and of every member in it that is launched or replayed by itself, by the places in the
    /// model's code that it computes.
    pub fn name_ranges(&mut self) {
        self.ranges = StepRanges::of_environment(&self.module);
    }

    /// The steps that were traced and read since this was last asked.
    pub fn take_traces(&mut self) -> Vec<StepTrace> {
        self.tracer.as_mut().map_or(Vec::new(), |tracer| std::mem::take(&mut tracer.done))
    }
}

#[cfg(test)]
mod tests;
