//! The end of a step, or of single copies, which host blocks are used until.

use piecewise_backend::device::{Device, DeviceError};

/// The end of a step, or of single copies, by an event that is used again and again.
#[derive(Debug)]
pub(crate) struct StepEnd<E> {
    event: Option<E>,
    waits: Waits,
}

/// What has to be waited for before the blocks of a step are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Nothing,
    /// Copies that are enqueued, and that no event marks: the step did not get to its end, or that
    /// could not be marked.
    Unmarked,
    /// The event at the end of the step.
    Marked,
}

impl<E> Default for StepEnd<E> {
    fn default() -> Self {
        Self { event: None, waits: Waits::Nothing }
    }
}

impl<E> StepEnd<E> {
    /// Copies of the step were enqueued: its blocks are in use, whether or not it gets to its end.
    pub(crate) fn enqueued(&mut self) {
        self.waits = Waits::Unmarked;
    }

    /// Marks the present end of the stream.
    pub(crate) fn record<D: Device<Event = E>>(
        &mut self,
        device: &mut D,
    ) -> Result<(), DeviceError> {
        self.event = Some(device.record(self.event.take())?);
        self.waits = Waits::Marked;
        Ok(())
    }

    /// Waits for all of the step that was enqueued.
    pub(crate) fn wait<D: Device<Event = E>>(&mut self, device: &mut D) -> Result<(), DeviceError> {
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
