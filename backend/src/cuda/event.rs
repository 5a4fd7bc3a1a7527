//! Points in a stream.

use super::driver::{Handle, Outcome};
use super::stream::Stream;
use std::sync::Arc;

/// A point in the device's stream.
#[derive(Debug)]
pub struct CudaEvent {
    stream: Arc<Stream>,
    handle: Handle,
    /// How many copies were enqueued before it.
    copies: u64,
}

impl CudaEvent {
    /// Marks the end of the stream, with `again` if it is given: the point that it marked before is
    /// forgotten.
    pub(super) fn record(
        stream: &Arc<Stream>,
        timing: bool,
        again: Option<Box<Self>>,
    ) -> Outcome<Box<Self>> {
        let mut event = match again {
            Some(event) => event,
            None => {
                let handle = stream.context.driver.create_event(timing)?;
                Box::new(Self { stream: Arc::clone(stream), handle, copies: 0 })
            }
        };
        event.stream.context.driver.record_event(event.handle, stream.handle)?;
        (event.stream, event.copies) = (Arc::clone(stream), stream.copies.enqueued());
        Ok(event)
    }

    pub(super) fn wait(&self) -> Outcome<()> {
        self.stream.context.driver.wait_event(self.handle)?;
        self.stream.copies.pass(self.copies);
        Ok(())
    }

    /// Milliseconds from `start` to this event, once both have passed.
    pub(super) fn milliseconds_since(&self, start: &Self) -> Outcome<f32> {
        self.stream.context.driver.elapsed(start.handle, self.handle)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.stream.context.give_back(|driver| driver.destroy_event(self.handle));
    }
}
