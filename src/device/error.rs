//! Why a device can't be opened.

use piecewise_backend::cuda::{Arch, CudaError, NvrtcError};
use piecewise_backend::device::DeviceError;

/// Why a device can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Something of CUDA is missing or too old.
    #[error("can't run on cuda:{ordinal}; `piecewise doctor` says more")]
    Cuda {
        /// The device's number.
        ordinal: u32,
        /// What is missing.
        source: CudaError,
    },
    /// A device without a compiler.
    #[error("NVRTC is not loaded; `piecewise doctor` says how to get it")]
    NoNvrtc,
    /// An architecture alone.
    #[error(
        "target cuda:{arch} is an architecture to compile for; to run, write cpu, cuda or cuda:N"
    )]
    NoDevice {
        /// The architecture.
        arch: Arch,
    },
    /// The run-time compiler can't be used.
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
    /// An architecture that the run-time compiler does not know.
    #[error("{nvrtc} does not know {arch}; it knows {known}")]
    UnknownArch {
        /// The architecture.
        arch: Arch,
        /// The compiler.
        nvrtc: String,
        /// What it knows.
        known: String,
    },
    /// The processor's threads or memory.
    #[error(transparent)]
    Cpu(#[from] DeviceError),
}
