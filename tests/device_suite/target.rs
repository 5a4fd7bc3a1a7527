//! What the suite runs on: a device with its compiler.

#![allow(clippy::print_stdout, reason = "a skipped case says why")]

use piecewise_backend::compiler::{Compiler, NoStore, Store};
use piecewise_backend::cpu::{AbsorbingCompiler, CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{CudaDevice, CudaOptions, CudaProbe};
use piecewise_backend::device::Device;
use piecewise_backend::store::MemoryStore;
use piecewise_kernels::op::OpRegistry;
use std::sync::{Arc, Mutex, OnceLock};

/// A device and a compiler for it, made anew as often as a case wants.
pub(crate) trait Target {
    /// The device.
    type Device: Device;

    /// How it is called in what a case prints.
    const NAME: &'static str;

    /// The largest step that the cases of equal modes run; more on a device that is quick.
    const MOST_TOKENS: u64 = 512;

    /// The random steps that are padded in two ways.
    const PADDED_STEPS: u32 = 500;

    /// The random graphs that are run.
    const RANDOM_GRAPHS: u32;

    /// Whether there is such a device; says on standard output if not. Where the environment
    /// requires it, that is a failure.
    fn is_there() -> bool {
        true
    }

    /// What compiled kernels are kept in, over all models of a run.
    fn store() -> &'static dyn Store {
        &NoStore
    }

    /// A device that runs the ops of `registry` with `threads` threads, where that means
    /// something, and a compiler for it.
    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (Self::Device, Box<dyn Compiler>);

    /// Other compilers for the same device, which compute the same in another way.
    fn others(_: &Arc<OpRegistry>, _: usize) -> Vec<Box<dyn Compiler>> {
        Vec::new()
    }
}

/// The CPU with its own compiler.
pub(crate) struct Cpu;

impl Target for Cpu {
    type Device = CpuDevice;
    const NAME: &'static str = "cpu";
    const PADDED_STEPS: u32 = 1000;
    const RANDOM_GRAPHS: u32 = 1000;

    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (CpuDevice, Box<dyn Compiler>) {
        let device = CpuDevice::new(Arc::clone(registry), threads).unwrap();
        (device, Box::new(CpuCompiler::new(Arc::clone(registry), threads)))
    }

    fn others(registry: &Arc<OpRegistry>, threads: usize) -> Vec<Box<dyn Compiler>> {
        vec![Box::new(AbsorbingCompiler::new(Arc::clone(registry), threads))]
    }
}

/// The CPU with a compiler that absorbs regions into the matmuls beside them.
pub(crate) struct AbsorbingCpu;

impl Target for AbsorbingCpu {
    type Device = CpuDevice;
    const NAME: &'static str = "absorbing cpu";
    const RANDOM_GRAPHS: u32 = 60;

    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (CpuDevice, Box<dyn Compiler>) {
        let device = CpuDevice::new(Arc::clone(registry), threads).unwrap();
        (device, Box::new(AbsorbingCompiler::new(Arc::clone(registry), threads)))
    }

    fn others(registry: &Arc<OpRegistry>, threads: usize) -> Vec<Box<dyn Compiler>> {
        vec![Box::new(CpuCompiler::new(Arc::clone(registry), threads))]
    }
}

/// The first CUDA device.
pub(crate) struct Cuda;

impl Target for Cuda {
    type Device = CudaDevice;
    const NAME: &'static str = "cuda";
    const MOST_TOKENS: u64 = 4096;
    const RANDOM_GRAPHS: u32 = 60;

    fn is_there() -> bool {
        static MISSING: OnceLock<Option<String>> = OnceLock::new();
        let missing = MISSING.get_or_init(|| {
            let probe = CudaProbe::run(&CudaOptions::default());
            probe.check(0).err().map(|reason| reason.to_string())
        });
        let Some(reason) = missing else { return true };
        let required = std::env::var("PIECEWISE_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "PIECEWISE_REQUIRE_GPU=1, but {reason}");
        println!("skipped on cuda: {reason}");
        false
    }

    fn store() -> &'static dyn Store {
        static KERNELS: MemoryStore = MemoryStore::new();
        &KERNELS
    }

    fn make(registry: &Arc<OpRegistry>, _: usize) -> (CudaDevice, Box<dyn Compiler>) {
        let open = |registry| CudaDevice::open(CudaOptions::default(), registry).unwrap();
        // Holds the context, which is otherwise made anew for every model.
        static HELD: OnceLock<Mutex<CudaDevice>> = OnceLock::new();
        HELD.get_or_init(|| Mutex::new(open(OpRegistry::new())));
        let device = open(OpRegistry::clone(registry));
        let compiler = device.compiler(Arc::clone(registry));
        (device, Box::new(compiler))
    }
}
