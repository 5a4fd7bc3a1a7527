//! What can go wrong at the driver boundary.

use super::library::LibraryError;
use super::lt_api::LtError;
use super::nvrtc::{Arch, NvrtcError};
use crate::device::DeviceError;
use derive_more::Display;
use std::path::PathBuf;

/// CUDA_ERROR_OUT_OF_MEMORY.
pub(super) const OUT_OF_MEMORY: u32 = 2;

/// CUDA_ERROR_CONTEXT_IS_DESTROYED.
pub(super) const CONTEXT_IS_DESTROYED: u32 = 709;

/// Statuses of failed kernels, after which a context refuses everything, and of contexts that are
/// gone: deinitialized, no context, memory that can't be corrected, links, and all that a kernel
/// can do wrong.
const STICKY: [u32; 15] = [4, 201, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999];

/// Statuses of calls that a capture does not allow.
const IN_CAPTURE: std::ops::RangeInclusive<u32> = 900..=909;

/// A driver function that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[error("{call} returned {name} ({code}): {description}")]
pub struct CallError {
    /// The driver's function, such as `cuGraphLaunch`.
    pub call: &'static str,
    /// The `CUresult` that it returned.
    pub code: u32,
    /// The status as the driver names it: `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// What the driver says about it.
    pub description: String,
}

impl CallError {
    /// Whether the status is `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// Whether the context that it was called in refuses everything from then on.
    pub fn is_sticky(&self) -> bool {
        STICKY.contains(&self.code)
    }

    /// Whether it was refused for a capture under way.
    pub(super) fn is_of_capture(&self) -> bool {
        IN_CAPTURE.contains(&self.code)
    }
}

/// Why there is no CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum CudaError {
    /// A library is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// NVRTC is missing, too old, or fails.
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
    /// cuBLASLt does not work on the device.
    #[error("cuBLASLt can't be used: {0}; reinstall it for the driver's CUDA version")]
    CublasLt(LtError),
    /// The driver is older than the functions that are used.
    #[error(
        "the CUDA driver supports CUDA {found}, and at least {needed} is needed; update the \
         NVIDIA driver"
    )]
    DriverTooOld {
        /// The CUDA version that the driver supports.
        found: CudaVersion,
        needed: CudaVersion,
    },
    /// The driver works, but there is no such device.
    #[error("there is no CUDA device {ordinal}; the driver shows {count}{hint}")]
    NoDevice { ordinal: u32, count: u32, hint: &'static str },
    /// The device lacks instructions or features that kernels use.
    #[error(
        "CUDA device {ordinal} ({name}) is {found}, and kernels need at least {needed}; run on \
         the CPU with --device cpu"
    )]
    TooOld { ordinal: u32, name: String, found: Arch, needed: Arch },
    /// The device cannot map memory at reserved addresses.
    #[error(
        "CUDA device {ordinal} ({name}) has no virtual memory management, which fixed-address \
         buffers need; in a virtual machine ask for a passed-through GPU"
    )]
    NoVirtualMemory { ordinal: u32, name: String },
    /// Captured graphs are to be written where that is not possible.
    #[error("the folder for captured graphs {} can't be made: {reason}; name another (`cuda.dot_dir`)", folder.display())]
    DotDir { folder: PathBuf, reason: String },
    /// A function of the driver returned an error, as `source` has it.
    #[error("could not {action}: {source}")]
    Call { action: String, source: CallError },
}

/// A CUDA version as the driver and libraries number them: 13000 is 13.0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, serde::Serialize)]
#[display("{}.{}", self.major(), self.0 % 1000 / 10)]
pub struct CudaVersion(pub u32);

impl CudaVersion {
    /// 12 of 12.4.
    pub fn major(self) -> u32 {
        self.0 / 1000
    }
}

/// A failed call as what the device could not do.
pub(super) fn device_error(action: impl Into<String>, error: &CallError) -> DeviceError {
    let (action, reason) = (action.into(), error.to_string());
    match error.is_sticky() {
        true => DeviceError::Lost { action, reason },
        false => DeviceError::Driver { action, reason },
    }
}

/// A failed call as a lack of memory where it is one.
pub(super) fn memory_error(what: &str, bytes: u64, free: u64, error: &CallError) -> DeviceError {
    if error.is_out_of_memory() {
        return DeviceError::OutOfMemory {
            what: what.to_owned(),
            bytes,
            reason: format!("{error}; {free} bytes are free"),
        };
    }
    device_error(format!("get {bytes} bytes for {what}"), error)
}
