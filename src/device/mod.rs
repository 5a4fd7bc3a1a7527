//! Where a model runs: a device by its name, opened once for as many models as one likes.

mod error;
mod opened;
mod spec;

pub use error::OpenError;
pub(crate) use opened::{Built, ModelParts, Room};
pub use spec::DeviceSpec;

use opened::Opened;
use piecewise_backend::compiler::Compiler;
use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::cuda::{Arch, CudaDevice, CudaError, CudaOptions, CudaProbe};
use piecewise_kernels::op::OpRegistry;
use std::sync::Arc;

/// What a compiler's artifacts hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompilerOptions {
    /// Whether a row has the same bits at any size.
    pub batch_invariant: bool,
    /// Whether they hold nothing but what is taken unmeasured.
    pub first_ways: bool,
}

/// A device that was opened. Clones are the same device: each model that is built on it has memory
/// and a stream of its own, and all share its threads, or its context, its library and the kernels
/// that were compiled for it.
///
/// Of an architecture alone ([`DeviceSpec::Arch`]) there is only a compiler.
#[derive(Clone, Debug)]
pub struct OpenDevice(pub(crate) Arc<dyn Opened>);

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
            Self::Arch(arch) => OpenDevice(Arc::new(arch)),
            Self::Cpu | Self::Auto => CpuDevice::new(Arc::new(OpRegistry::new()), threads)?.into(),
        })
    }
}

impl OpenDevice {
    /// The name by which it would be opened again, its number included: `cuda:0` of a plain `cuda`.
    pub fn spec(&self) -> DeviceSpec {
        self.0.spec()
    }

    /// Bytes that can still be taken on it.
    ///
    /// # Errors
    /// Where there is an architecture and no device.
    pub fn free_bytes(&self) -> Result<u64, OpenError> {
        self.0.free_bytes()
    }

    /// A compiler for it, with the ops of `registry`. NVRTC is opened by the first kernel that no
    /// cache has.
    pub fn compiler(
        &self,
        registry: &Arc<OpRegistry>,
        options: CompilerOptions,
    ) -> Box<dyn Compiler> {
        self.0.compiler(Arc::clone(registry), options)
    }

    /// Room on it for one model with these ops.
    pub(crate) fn share(&self, ops: &Arc<OpRegistry>) -> Result<Box<dyn Room>, OpenError> {
        self.0.share(ops)
    }
}

/// The processors of this machine.
pub fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
