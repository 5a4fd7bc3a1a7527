//! The one stream of a device. It is no default stream: those can't be captured.

use super::context::Context;
use super::driver::{Handle, Outcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream that does not wait for the default stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) handle: Handle,
    pub(super) copies: Copies,
}

/// The copies between the device and host blocks that were put on a stream, by their number from 1
/// on, and how many of them are known to be done.
#[derive(Debug, Default)]
pub(super) struct Copies {
    enqueued: AtomicU64,
    done: AtomicU64,
}

impl Copies {
    pub(super) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Relaxed)
    }

    /// The number of a copy that is put on the stream now.
    pub(super) fn next(&self) -> u64 {
        self.enqueued.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// So many of them are done: somebody waited.
    pub(super) fn pass(&self, copies: u64) {
        self.done.fetch_max(copies, Ordering::Relaxed);
    }

    pub(super) fn is_done(&self, copy: u64) -> bool {
        copy <= self.done.load(Ordering::Relaxed)
    }
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Outcome<Arc<Self>> {
        let handle = context.driver.create_stream()?;
        Ok(Arc::new(Self { context: context.clone(), handle, copies: Copies::default() }))
    }

    pub(super) fn synchronize(&self) -> Outcome<()> {
        self.context.driver.synchronize(self.handle)?;
        self.copies.pass(self.copies.enqueued());
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.destroy_stream(self.handle));
    }
}
