//! The compiled model: programs bound to one arena, captured graphs, and what steps over them need.

use super::clock::StepClock;
use super::graphs::GraphSet;
use super::late_sizes::LateSizes;
use super::origin::Origin;
use super::pace::Pace;
use super::ranges::StepRanges;
use super::staging::{GivenInputs, Staging};
use super::tracer::Tracer;
use crate::device::{ChosenWays, Gain, Members, Memory};
use crate::dispatch::{Dispatcher, MeasuredWays};
use crate::observe::Statistics;
use crate::words::{
    BuildTimes, CaptureWhen, Checks, Dispatch, GraphReport, Ledger, ModelError, OnCaptureFailure,
    StepTrace, SuspendedWeights, SymbolTable,
};
use piecewise_backend::device::{Address, Device};
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightFindings;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use std::sync::Arc;
use std::time::Duration;

/// A model compiled for a device: `Send`, used by one thread at a time, one stream, at most two
/// steps submitted.
#[derive(derive_more::Debug)]
#[debug("CompiledModel on {}, {} graphs, {memory:?}", device.describe(), graphs.ready().count())]
pub struct CompiledModel {
    // Captured graphs and programs go before the device that they live on.
    pub(crate) graphs: GraphSet,
    pub(crate) members: Members,
    pub(crate) staging: Staging,
    pub(super) clock: StepClock,
    pub(super) tracer: Option<Tracer>,
    pub(super) ranges: Option<StepRanges>,
    pub(crate) memory: Memory,
    /// What everything on the device is made from, once more if it is lost.
    pub(crate) origin: Origin,
    pub(crate) symbols: SymbolTable,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) ways: MeasuredWays,
    pub(crate) module: Arc<Module>,
    pub(crate) stats: Statistics,
    pub(crate) strict: bool,
    pub(crate) capture_when: CaptureWhen,
    pub(crate) on_capture_failure: OnCaptureFailure,
    pub(crate) recapture_limit: u32,
    /// How often memory has moved since the model was built, or its graphs were enabled.
    pub(crate) moves: u32,
    pub(crate) capture_attempts: u32,
    pub(crate) checks: Checks,
    pub(crate) next_step: u64,
    pub(crate) last: Option<Dispatch>,
    pub(crate) read_counts: Vec<u64>,
    pub(crate) given: GivenInputs,
    pub(crate) reduced: Option<String>,
    pub(crate) times: BuildTimes,
    pub(crate) launches_only: bool,
    pub(super) background: Pace,
    /// Steps before it are lost with the device that they ran on.
    pub(crate) first_step: u64,
    /// Whether what is on the device is gone and not yet made again.
    pub(crate) is_lost: bool,
    pub(crate) suspended: Option<SuspendedWeights>,
    pub(super) late: Option<LateSizes>,
    /// The key that bounds its memory, and the bytes that it leaves.
    pub(crate) limit: Option<(&'static str, u64)>,
    /// Where the parts of the memory lay when the programs were bound.
    pub(crate) bound_to: [Address; 3],
    /// Whether it is measured which steps padding loses whenever graphs were captured.
    pub(crate) measures_padding: bool,
    /// Whether ways are chosen by measurement.
    pub(crate) tune: TuneMode,
    pub(crate) tune_budget: Duration,
    pub(crate) device: Box<dyn Device>,
}

impl CompiledModel {
    /// The module that it was compiled from: graph, pieces and plan.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Classes and bounds of the symbols.
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    /// Lists and bounds of dispatch, with the mode in force.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// What was counted since the model was built.
    pub fn statistics(&self) -> &Statistics {
        &self.stats
    }

    /// How long the parts of building took.
    pub fn build_times(&self) -> BuildTimes {
        self.times
    }

    /// How each piece is run at each size of its own at which there is a choice.
    pub fn chosen_ways(&self) -> Vec<ChosenWays> {
        let ways = |stitch| self.origin.choices.ways(stitch, &self.origin.compiled);
        self.module.stitch().map_or_else(Vec::new, ways)
    }

    /// What was measured of each choice, at this start or before: of unique pieces at their sizes, then
    /// of the steps that replay in pieces.
    pub fn gains(&self) -> Vec<Gain> {
        let gains = |stitch| self.origin.choices.gains(stitch, &self.origin.compiled);
        self.module.stitch().map_or_else(Vec::new, gains)
    }

    /// What came to light while the weights were read.
    pub fn weight_findings(&self) -> WeightFindings {
        self.origin.weights().findings()
    }

    /// Bytes of everything on the device.
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger
    }

    /// The number of graphs that are ready to replay.
    pub fn captured_graphs(&self) -> usize {
        self.graphs.ready().count()
    }

    /// Every graph that the mode calls for, ready or not, and what became of it.
    pub fn graphs(&self) -> Vec<GraphReport> {
        self.graphs.reports(self.capture_attempts)
    }

    /// Why the graph mode is lower than asked for, if it is.
    pub fn reduced_mode(&self) -> Option<&str> {
        self.reduced.as_deref()
    }

    /// Name and size of the device, in a line for people.
    pub fn describe_device(&self) -> String {
        self.device.describe()
    }

    /// How the last submitted step ran.
    pub fn last_step(&self) -> Option<Dispatch> {
        self.last
    }

    /// What became of the weights, where the model is suspended.
    pub fn suspended(&self) -> Option<SuspendedWeights> {
        self.suspended
    }

    /// The backend that it was built on.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The device, to inspect or edit memory between steps.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    /// Which steps go another way than a replay of their padded size, as it was measured.
    pub fn measured_ways(&self) -> &MeasuredWays {
        &self.ways
    }

    /// The device, beside the graph and where its values lie there.
    pub(crate) fn device_beside(&mut self) -> (&mut dyn Device, (&Graph, &Memory)) {
        (&mut *self.device, (self.module.graph(), &self.memory))
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
        self.tracer = if traces { Some(Tracer::start(&mut *self.device)?) } else { None };
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
