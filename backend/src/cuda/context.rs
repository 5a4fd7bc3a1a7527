//! The primary context of a device: shared with every library of the process that uses the device.

use super::driver::{Driver, Handle, Outcome};
use super::error::{CallError, CudaError};
use super::probe::{DeviceReport, no_device};
use std::sync::Arc;

/// A retained primary context. Everything that lives in it holds it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: DeviceReport,
    handle: Handle,
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
        let handle = driver.retain_context(ordinal).map_err(failed("open a context on"))?;
        let context = Self { driver, device, handle };
        context.enter().map_err(failed("use the context of"))?;
        Ok(Arc::new(context))
    }

    /// Makes it current on this thread: a device may move between threads, and a library may have
    /// made another one current.
    pub(super) fn enter(&self) -> Outcome<()> {
        self.driver.make_current(self.handle)
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
