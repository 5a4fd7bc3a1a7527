//! The end of a step, or of single copies, which host blocks are used until.

use piecewise_backend::device::{Device, DeviceError, Event};

/// The end of a step, or of single copies, by an event that is used again and again.
#[derive(Debug, Default)]
pub(crate) struct StepEnd {
    event: Option<Event>,
    waits: Waits,
}

/// What has to be waited for before the blocks of a step are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Waits {
    #[default]
    Nothing,
    /// Copies that are enqueued, and that no event marks: the step did not get to its end, or that
    /// could not be marked.
    Unmarked,
    /// The event at the end of the step.
    Marked,
}

impl StepEnd {
    /// Copies of the step were enqueued: its blocks are in use, whether or not it gets to its end.
    pub(crate) fn enqueued(&mut self) {
        self.waits = Waits::Unmarked;
    }

    /// Marks the present end of the stream.
    pub(crate) fn record(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        self.event = Some(device.record(self.event.take())?);
        self.waits = Waits::Marked;
        Ok(())
    }

    /// Waits for all of the step that was enqueued.
    pub(crate) fn wait(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        if self.waits == Waits::Unmarked {
            self.record(device)?;
        }
        if let (Waits::Marked, Some(event)) = (self.waits, &self.event) {
            device.wait(event)?;
        }
        self.waits = Waits::Nothing;
        Ok(())
    }
}
