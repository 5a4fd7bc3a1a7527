//! A device that models are built on, whatever it is.

use super::error::OpenError;
use super::spec::DeviceSpec;
use piecewise_backend::compiler::{Compiler, CompilerOptions};
use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::cuda::{Arch, CudaCompiler, CudaDevice, LazyNvrtc, library_dirs};
use piecewise_backend::device::Device;
use piecewise_kernels::op::OpRegistry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device that was opened. Clones are the same device: each model that is built on it has memory
/// and a stream of its own, and all share its threads, or its context, its library and the kernels
/// that were compiled for it.
///
/// Of an architecture alone ([`DeviceSpec::Arch`]) there is only a compiler.
#[derive(Clone, Debug)]
pub struct OpenDevice(Arc<Opened>);

#[derive(Debug)]
enum Opened {
    Device(DeviceSpec, Mutex<Box<dyn Device>>),
    Arch(Arch),
}

fn lock(device: &Mutex<Box<dyn Device>>) -> MutexGuard<'_, Box<dyn Device>> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenDevice {
    /// A device of one's own, or a known one with a
    /// [hook](piecewise_backend::hooks::HookedDevice); `spec` is what errors and reports call it.
    pub fn new(spec: DeviceSpec, device: impl Device) -> Self {
        Self(Arc::new(Opened::Device(spec, Mutex::new(Box::new(device)))))
    }

    /// A compiler for an architecture.
    pub(super) fn of_arch(arch: Arch) -> Self {
        Self(Arc::new(Opened::Arch(arch)))
    }

    fn device(&self) -> Result<MutexGuard<'_, Box<dyn Device>>, OpenError> {
        match &*self.0 {
            Opened::Device(_, device) => Ok(lock(device)),
            Opened::Arch(arch) => Err(OpenError::NoDevice { arch: *arch }),
        }
    }

    /// The name by which it would be opened again, its number included: `cuda:0` of a plain `cuda`.
    pub fn spec(&self) -> DeviceSpec {
        match &*self.0 {
            Opened::Device(spec, _) => *spec,
            Opened::Arch(arch) => DeviceSpec::Arch(*arch),
        }
    }

    /// Bytes that can still be taken on it.
    ///
    /// # Errors
    /// Where there is an architecture and no device.
    pub fn free_bytes(&self) -> Result<u64, OpenError> {
        Ok(self.device()?.free_bytes())
    }

    /// A compiler for it, with the ops of `registry`. NVRTC is opened by the first kernel that no
    /// cache has.
    pub fn compiler(
        &self,
        registry: &Arc<OpRegistry>,
        options: CompilerOptions,
    ) -> Box<dyn Compiler> {
        let ops = Arc::clone(registry);
        match &*self.0 {
            Opened::Device(_, device) => lock(device).compiler(ops, options),
            Opened::Arch(arch) => {
                let nvrtc = LazyNvrtc::new(library_dirs(&[]), None);
                Box::new(CudaCompiler::new(ops, *arch, nvrtc).with_options(options))
            }
        }
    }

    /// Room on it for one model with these ops.
    pub(crate) fn share(&self, ops: &Arc<OpRegistry>) -> Result<Box<dyn Device>, OpenError> {
        let shared = self.device()?.share(Arc::clone(ops));
        shared.map_err(|source| OpenError::Device { device: self.spec(), source })
    }
}

/// A processor that was opened by one's own code.
impl From<CpuDevice> for OpenDevice {
    fn from(device: CpuDevice) -> Self {
        Self::new(DeviceSpec::Cpu, device)
    }
}

/// A CUDA device that was opened with settings of one's own, or over another driver.
impl From<CudaDevice> for OpenDevice {
    fn from(device: CudaDevice) -> Self {
        Self::new(DeviceSpec::Cuda(device.report().ordinal), device)
    }
}
