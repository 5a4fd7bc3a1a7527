//! Making everything on the device again after it was lost.

use super::CompiledModel;
use super::clock::StepClock;
use super::error::ModelError;
use super::graphs::OnCaptureFailure;
use super::{CaptureWhen, GraphSlot};
use piecewise_backend::device::Device;

impl<D: Device> CompiledModel<D> {
    /// Whether the device was lost and is not opened anew yet: every step is refused.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// See [`Model`](super::Model).
    pub(super) fn recover(&mut self) -> Result<(), ModelError> {
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
            self.capture_all(OnCaptureFailure::Launch, &mut |_| {})?;
        }
        if self.origin.backed_early {
            self.device.drop_backing(states)?;
        }
        self.device.back(states)?;
        self.stats.recoveries += 1;
        self.is_lost = false;
        Ok(())
    }
}
