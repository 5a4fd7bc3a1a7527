//! Pages of the host's virtual memory.

use std::ffi::c_void;
use std::io;

/// What ranges of pages are multiples of, in bytes.
pub(super) const PAGE: u64 = 4096;

pub(super) use system::{map, replace, unmap};

#[cfg(not(miri))]
mod system {
    use super::{c_void, io};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

    /// Pages that read as zeros and can't be written.
    pub(in super::super) fn map(bytes: usize) -> io::Result<*mut c_void> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        Ok(unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ, FLAGS)? })
    }

    /// Replaces pages by zeroed ones at the same addresses, which can be written or not.
    ///
    /// # Safety
    /// The pages must be of [`map`], and nobody may use them meanwhile.
    pub(in super::super) unsafe fn replace(
        base: *mut c_void,
        bytes: usize,
        is_writable: bool,
    ) -> io::Result<()> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, is_writable);
        // SAFETY: the caller's promise.
        unsafe { mmap_anonymous(base, bytes, protection, FLAGS | MapFlags::FIXED)? };
        Ok(())
    }

    /// Gives pages back.
    ///
    /// # Safety
    /// They must be of [`map`], and nobody may use them any more.
    pub(in super::super) unsafe fn unmap(base: *mut c_void, bytes: usize) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { munmap(base, bytes)? };
        Ok(())
    }
}

/// Miri knows no pages that are replaced: they are memory of the allocator, and may always be written.
#[cfg(miri)]
mod system {
    use super::{PAGE, c_void, io};
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(bytes: usize) -> io::Result<Layout> {
        let layout = Layout::from_size_align(bytes, PAGE as usize);
        layout.map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    pub(in super::super) fn map(bytes: usize) -> io::Result<*mut c_void> {
        // SAFETY: ranges have a page at least.
        let base = unsafe { alloc_zeroed(layout(bytes)?) };
        if base.is_null() { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(base.cast()) }
    }

    pub(in super::super) unsafe fn replace(
        base: *mut c_void,
        bytes: usize,
        _: bool,
    ) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { base.write_bytes(0, bytes) };
        Ok(())
    }

    pub(in super::super) unsafe fn unmap(base: *mut c_void, bytes: usize) -> io::Result<()> {
        // SAFETY: the caller's promise, and `map` took the same layout.
        unsafe { dealloc(base.cast(), layout(bytes)?) };
        Ok(())
    }
}
