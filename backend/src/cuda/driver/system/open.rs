//! The driver found and initialized.

use super::SystemDriver;
use super::functions::DriverApi;
use crate::cuda::error::{CallError, CudaError, CudaVersion};
use crate::cuda::library::{CudaLibrary, open};
use std::ffi::{c_int, c_uint};

impl SystemDriver {
    /// The least driver: the newest function used is `cuFuncLoad`, of CUDA 12.4.
    pub(in crate::cuda) const OLDEST: CudaVersion = CudaVersion(12_040);

    /// Finds the driver and initializes it. The version is compared before the functions are
    /// resolved, so that an old driver is named as such.
    ///
    /// # Errors
    /// When there is none, it is too old, or it does not work.
    pub fn open() -> Result<Self, CudaError> {
        let library = open(CudaLibrary::Driver, &[], None)?;
        // SAFETY: the signatures are those of the driver API since its first version.
        let (init, version) = unsafe {
            (
                library.function::<unsafe extern "C" fn(c_uint) -> c_uint>("cuInit")?,
                library
                    .function::<unsafe extern "C" fn(*mut c_int) -> c_uint>("cuDriverGetVersion")?,
            )
        };
        let failed = |action: &str, call, code| CudaError::Call {
            action: action.to_owned(),
            source: CallError {
                call,
                code,
                name: initial_error(code).to_owned(),
                description: "the driver library is there but does not work; nvidia-smi should \
                              say more"
                    .to_owned(),
            },
        };
        let mut found = 0;
        // SAFETY: `found` is what the function writes.
        match unsafe { version(&mut found) } {
            0 => {}
            code => return Err(failed("ask for the driver's version", "cuDriverGetVersion", code)),
        }
        let found = CudaVersion(found.max(0) as u32);
        if found < Self::OLDEST {
            return Err(CudaError::DriverTooOld { found, needed: Self::OLDEST });
        }
        // SAFETY: 0 is the only flag there is.
        match unsafe { init(0) } {
            0 => {}
            code => return Err(failed("initialize the driver", "cuInit", code)),
        }
        Ok(Self { api: DriverApi::resolve(&library)?, version: found, path: library.path })
    }
}

/// The status of the first calls by name, when the driver can't be asked yet.
fn initial_error(code: u32) -> &'static str {
    match code {
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        34 => "CUDA_ERROR_STUB_LIBRARY",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        804 => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        999 => "CUDA_ERROR_UNKNOWN",
        _ => "an error",
    }
}
