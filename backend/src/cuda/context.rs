//! The primary context of a device: shared with every library of the process that uses the device.

use super::driver::{Driver, Handle, Outcome};
use super::error::{CONTEXT_IS_DESTROYED, CallError, CudaError};
use super::probe::{DeviceReport, no_device};
use std::sync::Arc;

/// A retained primary context. Everything that lives in it holds it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: DeviceReport,
    handle: Handle,
    /// How often the device's context had been reset when this was retained.
    generation: u64,
}

impl Context {
    pub(super) fn retain(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Arc<Self>, CudaError> {
        let failed = |action: &str| {
            let action = format!("{action} CUDA device {ordinal}");
            move |source: CallError| CudaError::Call { action, source }
        };
        let count = driver.device_count().map_err(failed("count devices for"))?;
        if ordinal >= count {
            return Err(no_device(ordinal, count));
        }
        let device = DeviceReport::read(&*driver, ordinal).map_err(failed("describe"))?;
        device.check()?;
        let generation = driver.generation(ordinal);
        let handle = driver.retain_context(ordinal).map_err(failed("open a context on"))?;
        let context = Self { driver, device, handle, generation };
        context.enter().map_err(failed("use the context of"))?;
        Ok(Arc::new(context))
    }

    /// Whether it was reset since it was retained: by its device or by another one of the process.
    pub(super) fn is_lost(&self) -> bool {
        self.driver.generation(self.device.ordinal) != self.generation
    }

    /// Makes it current on this thread: a device may move between threads, and a library may have
    /// made another one current.
    pub(super) fn enter(&self) -> Outcome<()> {
        if self.is_lost() {
            return Err(CallError {
                call: "cuCtxSetCurrent",
                code: CONTEXT_IS_DESTROYED,
                name: "CUDA_ERROR_CONTEXT_IS_DESTROYED".to_owned(),
                description: "it was reset after a failure".to_owned(),
            });
        }
        self.driver.make_current(self.handle)
    }

    /// Returns an object to the driver; those of a context that was reset went with it.
    pub(super) fn give_back(&self, call: impl FnOnce(&dyn Driver) -> Outcome<()>) {
        if !self.is_lost() {
            warn_failed(self.enter().and_then(|()| call(&*self.driver)));
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        warn_failed(self.driver.release_context(self.device.ordinal));
    }
}

/// What fails while something is dropped can only be said.
pub(super) fn warn_failed(outcome: Outcome<()>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "a CUDA object was not returned");
    }
}
