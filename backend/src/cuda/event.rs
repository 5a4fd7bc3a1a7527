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
    /// Marks the end of the stream, with `again` if it is given: the point that it marked before is
    /// forgotten.
    pub(super) fn record(stream: &Stream, timing: bool, again: Option<Self>) -> Outcome<Self> {
        let event = match again {
            Some(event) => event,
            None => {
                let context = stream.context.clone();
                let handle = context.driver.create_event(timing)?;
                Self { context, handle }
            }
        };
        event.context.driver.record_event(event.handle, stream.handle)?;
        Ok(event)
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
