//! Where a model runs: a device by its name, opened once for as many models as one likes.

mod error;
mod opened;
mod spec;

pub use error::OpenError;
pub use opened::OpenDevice;
pub use spec::DeviceSpec;

use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::cuda::{Arch, CudaDevice, CudaError, CudaOptions, CudaProbe};
use piecewise_kernels::op::OpRegistry;
use std::sync::Arc;

impl DeviceSpec {
    /// What `auto` comes to on this machine, and why where that is the processor. Everything else
    /// is what it was.
    pub fn resolve(self) -> (Self, Option<CudaError>) {
        self.resolve_by(|| CudaProbe::run(&CudaOptions::default()))
    }

    fn resolve_by(self, probe: impl FnOnce() -> CudaProbe) -> (Self, Option<CudaError>) {
        if self != Self::Auto {
            return (self, None);
        }
        let probe = probe();
        match probe.check(0).and_then(|_| probe.check_compiler()) {
            Ok(()) => (Self::Cuda(0), None),
            Err(reason) => (Self::Cpu, Some(reason)),
        }
    }

    /// Opens the device; `threads` are those of the processor.
    ///
    /// # Errors
    /// When the device, its driver or a library is missing or too old.
    pub fn open(self, threads: usize) -> Result<OpenDevice, OpenError> {
        self.open_as(threads, CudaOptions::default())
    }

    /// [`DeviceSpec::open`], where a CUDA device is opened as `options` say, at this name's number.
    ///
    /// # Errors
    /// As there.
    pub fn open_as(self, threads: usize, options: CudaOptions) -> Result<OpenDevice, OpenError> {
        Ok(match self.resolve_by(|| CudaProbe::run(&options)).0 {
            Self::Cuda(ordinal) => {
                let options = CudaOptions { ordinal, ..options };
                let device = CudaDevice::open(options, OpRegistry::new());
                device.map_err(|source| OpenError::Cuda { ordinal, source })?.into()
            }
            Self::Arch(arch) if arch < Arch::OLDEST => {
                return Err(OpenError::TooOld { arch, needed: Arch::OLDEST });
            }
            Self::Arch(arch) => OpenDevice::of_arch(arch),
            Self::Cpu | Self::Auto => {
                let device = CpuDevice::new(Arc::new(OpRegistry::new()), threads);
                device.map_err(|source| OpenError::Device { device: Self::Cpu, source })?.into()
            }
        })
    }
}

/// The processors of this machine.
pub fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
