//! What a compiled model does whatever its device is: what takes no more than the parts of a model
//! that others make, such as its end and its rebirth when a device is lost or its memory lent.

use super::clock::StepClock;
use super::compiled::CompiledModel;
use super::graphs::GraphSlot;
use super::step::{StepOutputs, Ticket};
use crate::device::{ChosenWays, Gain, load_weights};
use crate::dispatch::Dispatcher;
use crate::observe::Statistics;
use crate::words::{
    BuildTimes, CaptureWhen, CapturedGraph, Dispatch, GraphMode, GraphReport, Ledger, ModelError,
    OnCaptureFailure, Progress, StepData, StepTimes, SuspendedWeights, SymbolTable,
};
use piecewise_backend::device::Device;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use std::any::Any;

/// A [`CompiledModel`] whose device is chosen at run time. Engines, sessions and timers hand theirs
/// out to look at.
pub trait Model: Any + std::fmt::Debug + Send {
    /// The module that it was compiled from: graph, pieces and plan.
    fn module(&self) -> &Module;

    /// Classes and bounds of the symbols.
    fn symbols(&self) -> &SymbolTable;

    /// Lists and bounds of dispatch, with the mode in force.
    fn dispatcher(&self) -> &Dispatcher;

    /// What was counted since the model was built.
    fn statistics(&self) -> &Statistics;

    /// How long the parts of building took.
    fn build_times(&self) -> BuildTimes;

    /// How each piece is run at each size of its own at which there is a choice.
    fn chosen_ways(&self) -> Vec<ChosenWays>;

    /// What was measured of each choice, at this start or before: of unique pieces at their sizes, then
    /// of the steps that replay in pieces.
    fn gains(&self) -> Vec<Gain>;

    /// Bytes of everything on the device.
    fn ledger(&self) -> Ledger;

    /// The number of graphs that are ready to replay.
    fn captured_graphs(&self) -> usize;

    /// Every graph that the mode calls for, ready or not, and what became of it.
    fn graphs(&self) -> Vec<GraphReport>;

    /// Why the graph mode is lower than asked for, if it is.
    fn reduced_mode(&self) -> Option<&str>;

    /// Name and size of the device, in a line for people.
    fn describe_device(&self) -> String;

    /// How the last submitted step ran.
    fn last_step(&self) -> Option<Dispatch>;

    /// How long a step took that was read; `None` where it was not, or its place is another's now.
    fn step_times(&self, ticket: &Ticket) -> Option<StepTimes>;

    /// What became of the weights, where the model is suspended.
    fn suspended(&self) -> Option<SuspendedWeights>;

    /// Runs the steps to come in another mode. Waits for the steps on their way, drops the graphs
    /// that the mode has no use for, and captures those that it lacks, if graphs are not captured
    /// lazily: from the programs that there are, and a model that was built for mode `full` has the
    /// programs of every mode. Returns what each graph took.
    ///
    /// # Errors
    /// When the ops can't be captured for the mode, or its graphs pass what
    /// [`CompiledModel::limit_memory`] leaves, and nothing has changed; or when a capture fails and
    /// that is an error: the mode has changed then, and steps whose graph is missing are launched.
    fn set_graph_mode(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<CapturedGraph>, ModelError>;

    /// Whether steps are launched from now on, at the sizes that they would replay at: what a
    /// replay is held against.
    fn set_launches_only(&mut self, launches_only: bool);

    /// Whether the steps to come are timed by the device's clock, by a mark at either end of each.
    fn time_steps(&mut self, by_device: bool);

    /// Lets graphs that were disabled by failures be captured again, and captures what is missing, if
    /// graphs are not captured lazily. Returns how many graphs there are then.
    ///
    /// # Errors
    /// When a capture fails, and that is an error.
    fn enable_graphs(&mut self) -> Result<usize, ModelError>;

    /// Drops every graph, for whoever changed what they hold. Each is captured again by the next step
    /// that wants it; all of them at once by [`Self::enable_graphs`].
    fn invalidate_graphs(&mut self);

    /// Opens the device anew and makes everything on it again: memory, weights, programs, and the
    /// graphs that there would be at start. States are zeros afterwards, and what was submitted
    /// before can't be read.
    ///
    /// # Errors
    /// When the device can't be opened or no longer holds the model. The model is lost until a later
    /// call succeeds.
    fn recover(&mut self) -> Result<(), ModelError>;

    /// Gives the memory of the arena and of the states back, and that of the weights where `weights`
    /// says so. What the states hold is lost. Waits for the steps on their way; those that are not
    /// read yet can still be. A model that is suspended may be suspended further.
    ///
    /// # Errors
    /// When work before failed, or the device does not give memory back.
    fn suspend(&mut self, weights: SuspendedWeights) -> Result<(), ModelError>;

    /// Takes the memory of a suspended model back at its addresses; its states hold zeros. Graphs
    /// are not captured again. Weights that were dropped are made from `weights`, or else from what
    /// the model was built from. Does nothing where the model is not suspended.
    ///
    /// # Errors
    /// When memory is short, or dropped weights can't be made: the model stays suspended and holds as
    /// little as before.
    fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), ModelError>;

    /// Stages and enqueues a step. At most two steps may be submitted and not yet read.
    ///
    /// # Errors
    /// When counts or inputs do not fit, a launch fails, or (strict) the step would not replay.
    /// Nothing was enqueued where the step does not fit.
    fn submit(&mut self, step: &StepData<'_>) -> Result<Ticket, ModelError>;

    /// Waits for a step and returns its outputs; readable until the second submit after it.
    ///
    /// # Errors
    /// When the outputs were overwritten, or work of the step failed.
    fn read(&mut self, ticket: &Ticket) -> Result<StepOutputs<'_>, ModelError>;
}

impl<D: Device> Model for CompiledModel<D> {
    fn module(&self) -> &Module {
        &self.module
    }

    fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    fn statistics(&self) -> &Statistics {
        &self.stats
    }

    fn build_times(&self) -> BuildTimes {
        self.times
    }

    fn chosen_ways(&self) -> Vec<ChosenWays> {
        let ways = |stitch| self.origin.choices.ways(stitch, &self.origin.compiled);
        self.module.stitch().map_or_else(Vec::new, ways)
    }

    fn gains(&self) -> Vec<Gain> {
        let gains = |stitch| self.origin.choices.gains(stitch, &self.origin.compiled);
        self.module.stitch().map_or_else(Vec::new, gains)
    }

    fn ledger(&self) -> Ledger {
        self.memory.ledger
    }

    fn captured_graphs(&self) -> usize {
        self.graphs.ready().count()
    }

    fn graphs(&self) -> Vec<GraphReport> {
        self.graphs.reports(self.capture_attempts)
    }

    fn reduced_mode(&self) -> Option<&str> {
        self.reduced.as_deref()
    }

    fn describe_device(&self) -> String {
        self.device.describe()
    }

    fn last_step(&self) -> Option<Dispatch> {
        self.last
    }

    fn step_times(&self, ticket: &Ticket) -> Option<StepTimes> {
        self.clock.times(self.turn_of(ticket)?)
    }

    fn suspended(&self) -> Option<SuspendedWeights> {
        self.suspended
    }

    fn set_graph_mode(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<CapturedGraph>, ModelError> {
        if let (_, Some(reason)) = self.supported_mode(mode) {
            return Err(ModelError::Mode { mode: mode.name(), reason });
        }
        let ledger = self.ledger_within(mode)?;
        self.wait_idle()?;
        self.dispatcher.mode = mode;
        self.reduced = None;
        self.set_ledger(ledger);
        self.list_graphs();
        let mut captured = Vec::new();
        if self.capture_when == CaptureWhen::Startup {
            self.capture_listed(self.on_capture_failure, progress, Some(&mut captured))?;
        }
        self.measure_padding()?;
        Ok(captured)
    }

    fn set_launches_only(&mut self, launches_only: bool) {
        self.launches_only = launches_only;
    }

    fn time_steps(&mut self, by_device: bool) {
        self.clock.marks_steps = by_device;
    }

    fn enable_graphs(&mut self) -> Result<usize, ModelError> {
        self.graphs.slots_mut().for_each(GraphSlot::enable);
        self.retry_late();
        self.moves = 0;
        self.background.wake();
        if self.capture_when == CaptureWhen::Startup {
            self.capture_listed(self.on_capture_failure, &mut |_| {}, None)?;
        }
        Ok(self.captured_graphs())
    }

    fn invalidate_graphs(&mut self) {
        self.graphs.slots_mut().for_each(GraphSlot::invalidate);
        self.background.wake();
    }

    fn recover(&mut self) -> Result<(), ModelError> {
        self.is_lost = true;
        self.first_step = self.next_step;
        self.suspended = None;
        let marks_steps = self.clock.marks_steps;
        self.clock = StepClock::new();
        self.clock.marks_steps = marks_steps;
        // A trace ends with the device that it is of.
        if self.tracer.take().is_some() {
            tracing::warn!("the device was lost: the trace ends here; steps after it are in none");
        }
        self.graphs.slots_mut().for_each(GraphSlot::invalidate);
        self.device.reopen()?;
        let memory = self.origin.load(&mut self.device, &self.module, &mut |_| {})?;
        self.staging = self.origin.stage(&mut self.device, &self.module, &memory)?;
        self.memory = memory;
        self.bind_again()?;
        let states = self.memory.states;
        if self.origin.backed_early {
            self.device.back(states)?;
        }
        self.warm_up()?;
        if self.capture_when == CaptureWhen::Startup {
            self.capture_listed(OnCaptureFailure::Launch, &mut |_| {}, None)?;
        }
        if self.origin.backed_early {
            self.device.drop_backing(states)?;
        }
        self.device.back(states)?;
        self.stats.recoveries += 1;
        self.is_lost = false;
        Ok(())
    }

    fn suspend(&mut self, weights: SuspendedWeights) -> Result<(), ModelError> {
        self.wait_idle()?;
        let weights = self.suspended.map_or(weights, |before| before.max(weights));
        // From here on no step may run, whatever fails.
        self.suspended = Some(weights);
        self.device.drop_backing(self.memory.states)?;
        self.device.drop_backing(self.memory.arena)?;
        if weights == SuspendedWeights::Drop {
            self.device.drop_backing(self.memory.weights)?;
        }
        Ok(())
    }

    fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), ModelError> {
        let Some(suspended) = self.suspended else { return Ok(()) };
        let resumed = self.take_back(suspended, weights);
        if let Err(error) = resumed {
            let kept = self.suspend(suspended);
            return Err(kept.err().unwrap_or(error));
        }
        self.suspended = None;
        Ok(())
    }

    fn submit(&mut self, step: &StepData<'_>) -> Result<Ticket, ModelError> {
        self.submit(step)
    }

    fn read(&mut self, ticket: &Ticket) -> Result<StepOutputs<'_>, ModelError> {
        self.read(ticket)
    }
}

impl<D: Device> CompiledModel<D> {
    /// Whether the device was lost and is not opened anew yet: every step is refused.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn take_back(
        &mut self,
        suspended: SuspendedWeights,
        weights: Option<&dyn WeightSource>,
    ) -> Result<(), ModelError> {
        let Self { device, memory, module, origin, .. } = self;
        if suspended == SuspendedWeights::Drop {
            let source = weights.unwrap_or_else(|| origin.weights());
            device.back(memory.weights)?;
            load_weights(device, module, memory, &origin.compiled.layouts, source, &mut |_| {})?;
        }
        device.back(memory.arena)?;
        device.back(memory.states)?;
        self.wait_idle()
    }

    /// That the model has its memory.
    pub(super) fn check_awake(&self) -> Result<(), ModelError> {
        self.suspended.map_or(Ok(()), |_| Err(ModelError::Suspended))
    }
}
