//! Pinned host memory: what the device copies to and from while the host goes on.

use super::context::Context;
use super::error::memory_error;
use crate::device::DeviceError;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pinned, zeroed block.
#[derive(Debug)]
pub(super) struct PinnedBlock {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block belongs to this value alone; the driver's copies are ordered by events that
// whoever uses the block waits for.
unsafe impl Send for PinnedBlock {}

impl PinnedBlock {
    pub(super) fn allocate(context: &Arc<Context>, bytes: u64) -> Result<Self, DeviceError> {
        let what = "a pinned host block";
        let failed = |reason: &str| DeviceError::OutOfMemory {
            what: what.to_owned(),
            bytes,
            reason: reason.to_owned(),
        };
        let size = usize::try_from(bytes).map_err(|_| failed("more than the address space"))?;
        let start = context
            .driver
            .allocate_host(bytes.max(1))
            .map_err(|e| memory_error(what, bytes, 0, &e))?;
        let start = NonNull::new(start).ok_or_else(|| failed("the driver gave no address"))?;
        // SAFETY: the driver gave at least `size` writable bytes.
        unsafe { start.write_bytes(0, size) };
        Ok(Self { context: context.clone(), start, bytes: size })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are initialized and live as long as the block; that no copy writes
        // them meanwhile is the caller's part of `Device::host_bytes`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the block is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.free_host(self.start.as_ptr()));
    }
}
