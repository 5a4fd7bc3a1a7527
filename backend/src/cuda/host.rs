//! Pinned host memory: what the device copies to and from while the host goes on.

use super::context::Context;
use super::error::memory_error;
use super::stream::Copies;
use crate::device::{DeviceError, HostBlock};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// What is pinned at least.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct HostPage(#[expect(dead_code, reason = "read by the block's address")] [u8; 4096]);

/// A pinned, zeroed block. The memory is the process's own and not the driver's: a context that
/// another device of the process resets takes the pinning with it, and the bytes stay.
#[derive(derive_more::Debug)]
#[debug("PinnedBlock({block:?})")]
pub(super) struct PinnedBlock {
    context: Arc<Context>,
    /// Not touched but by `start`.
    _pages: Vec<HostPage>,
    start: NonNull<u8>,
    block: HostBlock,
    /// What copies use that nobody waited for yet, with what lies between, and the last of them.
    used: Option<(Range<u64>, u64)>,
}

// SAFETY: the block belongs to this value alone; what the driver's copies use is given to nobody
// before they are done.
unsafe impl Send for PinnedBlock {}

impl PinnedBlock {
    pub(super) fn allocate(context: &Arc<Context>, block: HostBlock) -> Result<Self, DeviceError> {
        let bytes = block.bytes;
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
        // SAFETY: the pages live as long as the block, which unpins them when it is dropped.
        let pinned = unsafe { context.driver.pin(start.as_ptr(), length) };
        pinned.map_err(|e| memory_error(what, bytes, 0, &e))?;
        Ok(Self { context: context.clone(), _pages: pages, start, block, used: None })
    }

    /// Where bytes begin that a copy is about to use.
    pub(super) fn lend(
        &mut self,
        range: Range<u64>,
        copies: &Copies,
    ) -> Result<*mut u8, DeviceError> {
        let start = self.find(&range)?;
        if range.is_empty() {
            return Ok(start);
        }
        self.used = match self.used.take().filter(|(_, last)| !copies.is_done(*last)) {
            Some((used, _)) => {
                Some((used.start.min(range.start)..used.end.max(range.end), copies.next()))
            }
            None => Some((range, copies.next())),
        };
        Ok(start)
    }

    /// Where bytes begin, if there are such.
    fn find(&self, range: &Range<u64>) -> Result<*mut u8, DeviceError> {
        match range.start <= range.end && range.end <= self.block.bytes {
            true => Ok(self.start.as_ptr().wrapping_add(range.start as usize)),
            false => Err(self.block.lacks(range.clone())),
        }
    }

    /// Where bytes begin that no copy uses.
    fn idle(&self, range: &Range<u64>, copies: &Copies) -> Result<*mut u8, DeviceError> {
        let start = self.find(range)?;
        let is_in_use = self.used.as_ref().is_some_and(|(used, last)| {
            used.start.max(range.start) < used.end.min(range.end) && !copies.is_done(*last)
        });
        if is_in_use {
            let (block, from, to) = (self.block.id, range.start, range.end);
            return Err(DeviceError::HostBlockInUse { block, from, to });
        }
        Ok(start)
    }

    /// See [`Device::host_bytes`](crate::device::Device::host_bytes).
    pub(super) fn bytes(&self, range: Range<u64>, copies: &Copies) -> Result<&[u8], DeviceError> {
        let start = self.idle(&range, copies)?;
        let length = (range.end - range.start) as usize;
        // SAFETY: the bytes are the block's, initialized, and live as long as it, whatever becomes of
        // the context; no copy uses them, and none can be enqueued while the device is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// See [`Device::host_bytes_mut`](crate::device::Device::host_bytes_mut).
    pub(super) fn bytes_mut(
        &mut self,
        range: Range<u64>,
        copies: &Copies,
    ) -> Result<&mut [u8], DeviceError> {
        let start = self.idle(&range, copies)?;
        let length = (range.end - range.start) as usize;
        // SAFETY: as for `bytes`, and the block is borrowed alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.unpin(self.start.as_ptr()));
    }
}
