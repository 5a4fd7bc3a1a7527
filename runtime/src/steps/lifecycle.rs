//! The life of a compiled model: its mode, its graphs as a whole, its end and its rebirth when a device is
//! lost or its memory lent.

use super::clock::StepClock;
use super::compiled::CompiledModel;
use super::graphs::GraphSlot;
use crate::device::load_weights;
use crate::words::{
    CaptureWhen, CapturedGraph, GraphMode, ModelError, OnCaptureFailure, Progress, SuspendedWeights,
};
use piecewise_backend::weights::WeightSource;

impl CompiledModel {
    /// Runs the steps to come in another mode. Waits for the steps on their way, drops the graphs
    /// that the mode has no use for, and captures those that it lacks, if graphs are not captured
    /// lazily: from the programs that there are, and a model that was built for mode `full` has the
    /// programs of every mode. Returns what each graph took.
    ///
    /// # Errors
    /// When the ops can't be captured for the mode, or its graphs pass what
    /// [`Self::limit_memory`] leaves, and nothing has changed; or when a capture fails and
    /// that is an error: the mode has changed then, and steps whose graph is missing are launched.
    pub fn set_graph_mode(
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

    /// Whether steps are launched from now on, at the sizes that they would replay at: what a
    /// replay is held against.
    pub fn set_launches_only(&mut self, launches_only: bool) {
        self.launches_only = launches_only;
    }

    /// Whether the steps to come are timed by the device's clock, by a mark at either end of each.
    pub fn time_steps(&mut self, by_device: bool) {
        self.clock.marks_steps = by_device;
    }

    /// Lets graphs that were disabled by failures be captured again, and captures what is missing, if
    /// graphs are not captured lazily. Returns how many graphs there are then.
    ///
    /// # Errors
    /// When a capture fails, and that is an error.
    pub fn enable_graphs(&mut self) -> Result<usize, ModelError> {
        self.graphs.slots_mut().for_each(GraphSlot::enable);
        self.retry_late();
        self.moves = 0;
        self.background.wake();
        if self.capture_when == CaptureWhen::Startup {
            self.capture_listed(self.on_capture_failure, &mut |_| {}, None)?;
        }
        Ok(self.captured_graphs())
    }

    /// Drops every graph, for whoever changed what they hold. Each is captured again by the next step
    /// that wants it; all of them at once by [`Self::enable_graphs`].
    pub fn invalidate_graphs(&mut self) {
        self.graphs.slots_mut().for_each(GraphSlot::invalidate);
        self.background.wake();
    }

    /// Opens the device anew and makes everything on it again: memory, weights, programs, and the
    /// graphs that there would be at start. States are zeros afterwards, and what was submitted
    /// before can't be read.
    ///
    /// # Errors
    /// When the device can't be opened or no longer holds the model. The model is lost until a later
    /// call succeeds.
    pub fn recover(&mut self) -> Result<(), ModelError> {
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
        let memory = self.origin.load(&mut *self.device, &self.module, &mut |_| {})?;
        self.staging = self.origin.stage(&mut *self.device, &self.module, &memory)?;
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

    /// Gives the memory of the arena and of the states back, and that of the weights where `weights`
    /// says so. What the states hold is lost. Waits for the steps on their way; those that are not
    /// read yet can still be. A model that is suspended may be suspended further.
    ///
    /// # Errors
    /// When work before failed, or the device does not give memory back.
    pub fn suspend(&mut self, weights: SuspendedWeights) -> Result<(), ModelError> {
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

    /// Takes the memory of a suspended model back at its addresses; its states hold zeros. Graphs
    /// are not captured again. Weights that were dropped are made from `weights`, or else from what
    /// the model was built from. Does nothing where the model is not suspended.
    ///
    /// # Errors
    /// When memory is short, or dropped weights can't be made: the model stays suspended and holds as
    /// little as before.
    pub fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), ModelError> {
        let Some(suspended) = self.suspended else { return Ok(()) };
        let resumed = self.take_back(suspended, weights);
        if let Err(error) = resumed {
            let kept = self.suspend(suspended);
            return Err(kept.err().unwrap_or(error));
        }
        self.suspended = None;
        Ok(())
    }

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
            load_weights(
                &mut **device,
                module,
                memory,
                &origin.compiled.layouts,
                source,
                &mut |_| {},
            )?;
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
