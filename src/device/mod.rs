//! Where a model runs: a device by its name, opened once for as many models as one likes.

mod error;
mod spec;

pub use error::OpenError;
pub use spec::DeviceSpec;

use piecewise_backend::compiler::Compiler;
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{
    Arch, CudaCompiler, CudaDevice, CudaError, CudaOptions, CudaProbe, LazyNvrtc, library_dirs,
};
use piecewise_backend::device::Device;
use piecewise_kernels::op::OpRegistry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
pub struct OpenDevice(pub(crate) Opened);

#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Cpu(Arc<Mutex<CpuDevice>>),
    Cuda(Arc<Mutex<CudaDevice>>),
    Arch(Arch),
}

pub(crate) fn lock<D>(device: &Mutex<D>) -> MutexGuard<'_, D> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceSpec {
    /// What `auto` comes to on this machine, and why where that is the processor. Everything else
    /// is what it was.
    pub fn resolve(self) -> (Self, Option<CudaError>) {
        self.resolve_as(&CudaOptions::default())
    }

    fn resolve_as(self, options: &CudaOptions) -> (Self, Option<CudaError>) {
        if self != Self::Auto {
            return (self, None);
        }
        let probe = CudaProbe::run(options);
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
        Ok(match self.resolve_as(&options).0 {
            Self::Cuda(ordinal) => {
                let options = CudaOptions { ordinal, ..options };
                let device = CudaDevice::open(options, OpRegistry::new());
                device.map_err(|source| OpenError::Cuda { ordinal, source })?.into()
            }
            Self::Arch(arch) if arch < Arch::OLDEST => {
                return Err(OpenError::TooOld { arch, needed: Arch::OLDEST });
            }
            Self::Arch(arch) => OpenDevice(Opened::Arch(arch)),
            Self::Cpu | Self::Auto => CpuDevice::new(Arc::new(OpRegistry::new()), threads)?.into(),
        })
    }
}

/// A processor that was opened with settings of its own, such as faults for tests.
impl From<CpuDevice> for OpenDevice {
    fn from(device: CpuDevice) -> Self {
        Self(Opened::Cpu(Arc::new(Mutex::new(device))))
    }
}

/// A CUDA device that was opened with settings of its own, or over a driver without a GPU for tests.
impl From<CudaDevice> for OpenDevice {
    fn from(device: CudaDevice) -> Self {
        Self(Opened::Cuda(Arc::new(Mutex::new(device))))
    }
}

impl OpenDevice {
    /// The name by which it would be opened again, its number included: `cuda:0` of a plain `cuda`.
    pub fn spec(&self) -> DeviceSpec {
        match &self.0 {
            Opened::Cpu(_) => DeviceSpec::Cpu,
            Opened::Cuda(device) => DeviceSpec::Cuda(lock(device).report().ordinal),
            Opened::Arch(arch) => DeviceSpec::Arch(*arch),
        }
    }

    /// Bytes that can still be taken on it.
    ///
    /// # Errors
    /// Where there is an architecture and no device.
    pub fn free_bytes(&self) -> Result<u64, OpenError> {
        match &self.0 {
            Opened::Cpu(device) => Ok(lock(device).free_bytes()),
            Opened::Cuda(device) => Ok(lock(device).free_bytes()),
            Opened::Arch(arch) => Err(OpenError::NoDevice { arch: *arch }),
        }
    }

    /// A compiler for it, with the ops of `registry`. NVRTC is opened by the first kernel that no
    /// cache has.
    pub fn compiler(
        &self,
        registry: &Arc<OpRegistry>,
        options: CompilerOptions,
    ) -> Box<dyn Compiler> {
        let registry = Arc::clone(registry);
        let CompilerOptions { batch_invariant, first_ways } = options;
        let of = |compiler: CudaCompiler| {
            compiler.with_batch_invariance(batch_invariant).with_first_ways(first_ways)
        };
        match &self.0 {
            Opened::Cpu(device) => Box::new(CpuCompiler::new(registry, lock(device).threads())),
            Opened::Cuda(device) => Box::new(of(lock(device).compiler(registry))),
            Opened::Arch(arch) => {
                let nvrtc = LazyNvrtc::new(library_dirs(&[]), None);
                Box::new(of(CudaCompiler::new(registry, *arch, nvrtc)))
            }
        }
    }
}

/// The processors of this machine.
pub fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
