//! Why a device can't be opened.

use super::spec::DeviceSpec;
use piecewise_backend::cuda::{Arch, CudaError};
use piecewise_backend::device::DeviceError;

/// Why a device can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum OpenError {
    /// Something of CUDA is missing or too old.
    #[error("can't run on cuda:{ordinal}; `piecewise doctor` says more")]
    Cuda { ordinal: u32, source: CudaError },
    /// The name of an architecture, which code can be compiled for and nothing runs on.
    #[error(
        "device cuda:{arch} is an architecture to compile for; to run, write cpu, cuda or cuda:N"
    )]
    NoDevice { arch: Arch },
    /// The name of an architecture that no kernel is written for.
    #[error("kernels are not written for {arch}: they need at least {needed}")]
    TooOld { arch: Arch, needed: Arch },
    /// The device has no room for another model, or the processor none for its threads.
    #[error("can't run on {device}; `piecewise doctor` says more")]
    Device { device: DeviceSpec, source: DeviceError },
}
