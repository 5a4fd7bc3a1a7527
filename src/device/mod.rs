//! Where a model runs: a device by its name, opened with its compiler.

mod error;
mod spec;

pub use error::OpenError;
pub use spec::DeviceSpec;

use piecewise_backend::compiler::Compiler;
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{
    CudaCompiler, CudaDevice, CudaError, CudaOptions, CudaProbe, Faults, LazyNvrtc, library_dirs,
};
use piecewise_kernels::op::OpRegistry;
use std::sync::Arc;

/// A device that was opened, with a compiler for it.
#[derive(Debug)]
pub enum OpenDevice {
    /// The processor.
    Cpu(Box<CpuDevice>, CpuCompiler),
    /// A CUDA device.
    Cuda(Box<CudaDevice>, CudaCompiler),
}

impl DeviceSpec {
    /// What `auto` comes to on this machine, and why where that is the processor. Everything else
    /// is what it was.
    pub fn resolve(self, faults: &Faults) -> (Self, Option<CudaError>) {
        if self != Self::Auto {
            return (self, None);
        }
        let probe = CudaProbe::run(&library_dirs(&[]), faults);
        match probe.check(0).and_then(|_| probe.check_compiler()) {
            Ok(()) => (Self::Cuda(0), None),
            Err(reason) => (Self::Cpu, Some(reason)),
        }
    }

    /// Opens the device, for models with the ops of `registry`; `threads` are those of the
    /// processor.
    ///
    /// # Errors
    /// When the device, its driver or a library is missing or too old, or this names an
    /// architecture and no device.
    pub fn open(self, registry: &Arc<OpRegistry>, threads: usize) -> Result<OpenDevice, OpenError> {
        self.open_with(registry, threads, &Faults::default())
    }

    /// [`DeviceSpec::open`], where what is planned in `faults` fails, for tests.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        self,
        registry: &Arc<OpRegistry>,
        threads: usize,
        faults: &Faults,
    ) -> Result<OpenDevice, OpenError> {
        let options = CudaOptions { faults: faults.clone(), ..CudaOptions::default() };
        self.open_as(registry, threads, options)
    }

    /// [`DeviceSpec::open`], where a CUDA device is opened as `options` say, at this name's number.
    ///
    /// # Errors
    /// As there.
    pub fn open_as(
        self,
        registry: &Arc<OpRegistry>,
        threads: usize,
        options: CudaOptions,
    ) -> Result<OpenDevice, OpenError> {
        match self.resolve(&options.faults).0 {
            Self::Cuda(ordinal) => {
                let options = CudaOptions { ordinal, ..options };
                let device = CudaDevice::open(options, OpRegistry::clone(registry));
                let device = device.map_err(|source| OpenError::Cuda { ordinal, source })?;
                let compiler = device.compiler(Arc::clone(registry));
                Ok(OpenDevice::Cuda(Box::new(device), compiler))
            }
            Self::Arch(arch) => Err(OpenError::NoDevice { arch }),
            Self::Cpu | Self::Auto => {
                let compiler = CpuCompiler::new(Arc::clone(registry), threads);
                let device = CpuDevice::new(Arc::clone(registry), threads)?;
                Ok(OpenDevice::Cpu(Box::new(device), compiler))
            }
        }
    }

    /// The compiler alone: an architecture needs no device.
    ///
    /// # Errors
    /// As [`DeviceSpec::open`]. NVRTC is opened by the first kernel that no cache has.
    pub fn compiler(
        self,
        registry: &Arc<OpRegistry>,
        threads: usize,
    ) -> Result<Box<dyn Compiler>, OpenError> {
        let Self::Arch(arch) = self else {
            return Ok(match self.open(registry, threads)? {
                OpenDevice::Cpu(_, compiler) => Box::new(compiler),
                OpenDevice::Cuda(_, compiler) => Box::new(compiler),
            });
        };
        let nvrtc = LazyNvrtc::new(library_dirs(&[]), None);
        Ok(Box::new(CudaCompiler::new(Arc::clone(registry), arch, nvrtc)))
    }
}

/// The processors of this machine.
pub(crate) fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
