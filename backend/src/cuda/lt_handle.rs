//! The handle of cuBLASLt: one for each device of the process.
//!
//! Where every [`super::device::CudaDevice`] had its own, devices that several threads opened, used
//! and closed at once crashed inside the library or broke each other's captures (cuBLASLt 13.1 on
//! an H100). So devices of one GPU share a handle, and calls that use handles take turns.

use super::context::{Context, warn_failed};
use super::lt_api::{LtApi, LtError};
use cudarc::cublaslt::sys as lt;
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The handles in use, by the number of their device. Whoever holds the lock may call.
static HANDLES: Mutex<BTreeMap<u32, Weak<LtHandle>>> = Mutex::new(BTreeMap::new());

type Handles = MutexGuard<'static, BTreeMap<u32, Weak<LtHandle>>>;

fn take_turn() -> Handles {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle; it lives as long as a device uses it.
#[derive(Debug)]
pub(super) struct LtHandle {
    context: Arc<Context>,
    api: LtApi,
    handle: lt::cublasLtHandle_t,
}

// SAFETY: the library allows a handle on any thread; it is reached through a turn alone.
unsafe impl Send for LtHandle {}
// SAFETY: as for Send.
unsafe impl Sync for LtHandle {}

/// The right to call with a handle.
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
        let mut handles = take_turn();
        let ordinal = context.device.ordinal;
        let known = handles.get(&ordinal).and_then(Weak::upgrade);
        if let Some(handle) = known.filter(|handle| !handle.context.is_lost()) {
            return Ok(handle);
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

    pub(super) fn api(&self) -> &LtApi {
        &self.api
    }

    /// Waits until no other thread calls.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { handle: self, _handles: take_turn() }
    }
}

impl Drop for LtHandle {
    fn drop(&mut self) {
        let _turn = take_turn();
        if self.context.is_lost() {
            // What the library holds on the device went with the context.
            return;
        }
        warn_failed(self.context.enter());
        // SAFETY: the handle was created and is destroyed once, in its own context.
        let code = unsafe { (self.api.cublasLtDestroy)(self.handle) };
        if code != 0 {
            tracing::warn!(code, "cublasLtDestroy failed");
        }
    }
}
