//! What a bench runs on.

use crate::skip::skipped;
use piecewise_backend::compiler::{Compiler, CompilerOptions};
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{CudaDevice, CudaOptions, CudaProbe};
use piecewise_backend::device::Device;
use piecewise_kernels::op::OpRegistry;
use piecewise_testing::absorbing_ops;
use std::sync::{Arc, Mutex, OnceLock};

/// A device and its compiler.
pub trait Target {
    type Device: Device;

    /// Whether the order of sums is the same fused, unfused and at every size.
    const FIXED_SUMS: bool;

    /// Scratch that any artifact of the tests has enough of.
    const SCRATCH_BYTES: u64;

    /// Whether there is one; says on standard output if not.
    fn is_there() -> bool;

    fn device(registry: Arc<OpRegistry>, threads: usize) -> Self::Device;

    /// A compiler for graphs without custom ops.
    fn with_compiler<R>(run: impl FnOnce(&dyn Compiler) -> R) -> R;
}

pub struct Cpu;

impl Target for Cpu {
    type Device = CpuDevice;
    const FIXED_SUMS: bool = true;
    const SCRATCH_BYTES: u64 = 4 << 20;

    fn is_there() -> bool {
        true
    }

    fn device(registry: Arc<OpRegistry>, threads: usize) -> CpuDevice {
        CpuDevice::new(absorbing_ops(&registry), threads).unwrap()
    }

    fn with_compiler<R>(run: impl FnOnce(&dyn Compiler) -> R) -> R {
        run(&CpuCompiler::new(super::registry(), 4))
    }
}

/// The first CUDA device.
pub struct Cuda;

/// A device that holds the context, and one compiler with every kernel that was compiled.
fn held() -> &'static (Mutex<CudaDevice>, Box<dyn Compiler>) {
    static HELD: OnceLock<(Mutex<CudaDevice>, Box<dyn Compiler>)> = OnceLock::new();
    HELD.get_or_init(|| {
        let device = CudaDevice::open(CudaOptions::default(), OpRegistry::new()).unwrap();
        let options = CompilerOptions::default();
        let compiler = device.compiler(super::registry(), options);
        (Mutex::new(device), compiler)
    })
}

impl Target for Cuda {
    type Device = CudaDevice;
    const FIXED_SUMS: bool = false;
    const SCRATCH_BYTES: u64 = 64 << 20;

    fn is_there() -> bool {
        let probe = CudaProbe::run(&CudaOptions::default());
        let Err(reason) = probe.check(0) else { return true };
        skipped("PIECEWISE_REQUIRE_GPU", format!("on cuda: {reason}"));
        false
    }

    fn device(registry: Arc<OpRegistry>, _: usize) -> CudaDevice {
        held();
        CudaDevice::open(CudaOptions::default(), OpRegistry::clone(&registry)).unwrap()
    }

    fn with_compiler<R>(run: impl FnOnce(&dyn Compiler) -> R) -> R {
        run(&*held().1)
    }
}
