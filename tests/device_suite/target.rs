//! What the suite runs on: a device with its compiler.

use piecewise_backend::compiler::Compiler;
use piecewise_backend::cpu::{AbsorbingCompiler, CpuCompiler, CpuDevice};
use piecewise_backend::device::Device;
use piecewise_kernels::op::OpRegistry;
use std::sync::Arc;

/// A device and a compiler for it, made anew as often as a case wants.
pub(crate) trait Target {
    /// The device.
    type Device: Device;

    /// A device that runs the ops of `registry` with `threads` threads, where that means
    /// something, and a compiler for it.
    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (Self::Device, Box<dyn Compiler>);
}

/// The CPU with its own compiler.
pub(crate) struct Cpu;

impl Target for Cpu {
    type Device = CpuDevice;

    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (CpuDevice, Box<dyn Compiler>) {
        let device = CpuDevice::new(Arc::clone(registry), threads).unwrap();
        (device, Box::new(CpuCompiler::new(Arc::clone(registry), threads)))
    }
}

/// The CPU with a compiler that absorbs regions into the matmuls beside them.
pub(crate) struct AbsorbingCpu;

impl Target for AbsorbingCpu {
    type Device = CpuDevice;

    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (CpuDevice, Box<dyn Compiler>) {
        let device = CpuDevice::new(Arc::clone(registry), threads).unwrap();
        (device, Box::new(AbsorbingCompiler::new(Arc::clone(registry), threads)))
    }
}
