//! The handle of cuBLASLt: one for each device of the process.
//!
//! Where every [`super::device::CudaDevice`] had its own, devices that several threads opened, used
//! and closed at once crashed inside the library or broke each other's captures (cuBLASLt 13.1 on
//! an H100). So devices of one GPU share a handle, of which none is made before the one before it is
//! destroyed, and all but launches take turns: handles are made and destroyed, and algorithms
//! searched for, one at a time. A launch takes no lock.

use super::context::{Context, warn_failed};
use super::lt_api::{LtApi, LtError};
use cudarc::cublaslt::sys as lt;
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// The handles that are not destroyed yet, by the number of their device. Whoever holds the lock may
/// do more than launch.
static HANDLES: Mutex<BTreeMap<u32, Weak<LtHandle>>> = Mutex::new(BTreeMap::new());
/// That a handle has been destroyed.
static DESTROYED: Condvar = Condvar::new();

type Handles = MutexGuard<'static, BTreeMap<u32, Weak<LtHandle>>>;

fn take_turn() -> Handles {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle; it lives as long as a device uses it.
#[derive(Debug)]
pub(super) struct LtHandle {
    context: Arc<Context>,
    pub(super) api: LtApi,
    handle: lt::cublasLtHandle_t,
}

// SAFETY: the library allows a handle on any thread, and launches on several at once; for all else
// it is reached through a turn.
unsafe impl Send for LtHandle {}
// SAFETY: as for Send.
unsafe impl Sync for LtHandle {}

/// The right to do more with a handle than to launch.
pub(super) struct Turn<'a> {
    handle: &'a LtHandle,
    _handles: Handles,
}

impl Turn<'_> {
    pub(super) fn handle(&self) -> lt::cublasLtHandle_t {
        self.handle.handle
    }
}

impl LtHandle {
    /// The handle of a context's device, made where there is none. The context is current.
    pub(super) fn of_device(context: &Arc<Context>, api: LtApi) -> Result<Arc<Self>, LtError> {
        // Dropped after the lock is, which dropping a handle takes.
        let _lost;
        let mut handles = take_turn();
        let ordinal = context.device.ordinal;
        while let Some(known) = handles.get(&ordinal) {
            match known.upgrade() {
                Some(handle) if !handle.context.is_lost() => return Ok(handle),
                // What it holds on the device went with the context.
                Some(handle) => {
                    _lost = handle;
                    break;
                }
                // Its last user waits for the lock, to destroy it.
                None => handles = DESTROYED.wait(handles).unwrap_or_else(PoisonError::into_inner),
            }
        }
        let mut handle = null_mut();
        // SAFETY: the function was resolved from the library with this signature and writes the
        // handle.
        let code = unsafe { (api.cublasLtCreate)(&mut handle) };
        if code != 0 {
            let what = "a handle on the device".to_owned();
            return Err(LtError { call: "cublasLtCreate", code, what });
        }
        let handle = Arc::new(Self { context: context.clone(), api, handle });
        handles.insert(ordinal, Arc::downgrade(&handle));
        Ok(handle)
    }

    /// What products are launched with, on any thread and beside other calls.
    pub(super) fn for_launches(&self) -> lt::cublasLtHandle_t {
        self.handle
    }

    /// Waits until no other thread does more than launch.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { handle: self, _handles: take_turn() }
    }
}

impl Drop for LtHandle {
    fn drop(&mut self) {
        let mut handles = take_turn();
        // What the library holds on the device goes with a context that is lost.
        if !self.context.is_lost() {
            warn_failed(self.context.enter());
            // SAFETY: the handle was created and is destroyed once, in its own context.
            let code = unsafe { (self.api.cublasLtDestroy)(self.handle) };
            if code != 0 {
                tracing::warn!(code, "cublasLtDestroy failed");
            }
        }
        let ordinal = self.context.device.ordinal;
        // Where the context was lost, another may have its place.
        if handles.get(&ordinal).is_some_and(|known| std::ptr::eq(known.as_ptr(), self)) {
            handles.remove(&ordinal);
            DESTROYED.notify_all();
        }
    }
}
