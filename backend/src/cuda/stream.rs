//! The one stream of a device. It is no default stream: those can't be captured.

use super::context::Context;
use super::driver::{Handle, Outcome};
use std::sync::Arc;

/// A stream that does not wait for the default stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) handle: Handle,
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Outcome<Arc<Self>> {
        let handle = context.driver.create_stream()?;
        Ok(Arc::new(Self { context: context.clone(), handle }))
    }

    pub(super) fn synchronize(&self) -> Outcome<()> {
        self.context.driver.synchronize(self.handle)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.destroy_stream(self.handle));
    }
}
