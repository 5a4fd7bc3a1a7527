//! Points in a stream.

use super::context::Context;
use super::driver::{Handle, Outcome};
use super::stream::Stream;
use std::sync::Arc;

/// A point in the device's stream.
#[derive(Debug)]
pub struct CudaEvent {
    context: Arc<Context>,
    handle: Handle,
}

impl CudaEvent {
    pub(super) fn record(stream: &Stream, timing: bool) -> Outcome<Self> {
        let context = stream.context.clone();
        let handle = context.driver.create_event(timing)?;
        let event = Self { context, handle };
        event.context.driver.record_event(handle, stream.handle)?;
        Ok(event)
    }

    /// Marks another point of the stream; the one before is forgotten.
    pub(super) fn record_again(&self, stream: &Stream) -> Outcome<()> {
        self.context.driver.record_event(self.handle, stream.handle)
    }

    pub(super) fn wait(&self) -> Outcome<()> {
        self.context.driver.wait_event(self.handle)
    }

    /// Milliseconds from `start` to this event, once both have passed.
    pub(super) fn milliseconds_since(&self, start: &Self) -> Outcome<f32> {
        self.context.driver.elapsed(start.handle, self.handle)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.destroy_event(self.handle));
    }
}
