//! Pinned host memory: what the device copies to and from while the host goes on.

use super::context::Context;
use super::error::memory_error;
use crate::device::DeviceError;
use std::ptr::NonNull;
use std::sync::Arc;

/// What is pinned at least.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct HostPage(#[expect(dead_code, reason = "read by the block's address")] [u8; 4096]);

/// A pinned, zeroed block. The memory is the process's own and not the driver's: a context that
/// another device of the process resets takes the pinning with it, and the bytes stay.
#[derive(derive_more::Debug)]
#[debug("PinnedBlock({bytes} bytes)")]
pub(super) struct PinnedBlock {
    context: Arc<Context>,
    /// Not touched but by `start`.
    _pages: Vec<HostPage>,
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
        let count = size.div_ceil(size_of::<HostPage>()).max(1);
        let mut pages = Vec::new();
        pages.try_reserve_exact(count).map_err(|_| failed("the host has no such memory"))?;
        pages.resize(count, HostPage([0; 4096]));
        let length = size_of_val(&pages[..]) as u64;
        let start = NonNull::from(&mut pages[..]).cast();
        let pinned = context.driver.pin(start.as_ptr(), length);
        pinned.map_err(|e| memory_error(what, bytes, 0, &e))?;
        Ok(Self { context: context.clone(), _pages: pages, start, bytes: size })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are initialized and live as long as the block, whatever becomes of the
        // context; that no copy writes them meanwhile is the caller's part of `Device::host_bytes`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the block is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.unpin(self.start.as_ptr()));
    }
}
