//! What the suite runs on: a device with its compiler.
#![allow(clippy::print_stdout, reason = "a child's words are handed on")]

use crate::bounded::Bound as _;
use crate::skip::skipped;
use piecewise_backend::compiler::{Compiler, CompilerOptions, NoStore, Store};
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{CudaDevice, CudaOptions, CudaProbe, LazyNvrtc, library_dirs};
use piecewise_backend::device::Device;
use piecewise_backend::store::MemoryStore;
use piecewise_kernels::op::OpRegistry;
use piecewise_testing::{
    AbsorbingCompiler, CallFault, DeviceFault, DeviceFaults, FaultKind, FaultPoint, Faults,
    FaultyDevice, absorbing_ops, cuda,
};
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A device and a compiler for it, made anew as often as a case wants.
pub(crate) trait Target {
    /// How it is called in what a case prints.
    const NAME: &'static str;

    /// The largest step that the cases of equal modes run; more on a device that is quick.
    const MOST_TOKENS: u64 = 512;

    /// The random steps that are padded in two ways.
    const PADDED_STEPS: u32 = 500;

    /// The random graphs that are run.
    const RANDOM_GRAPHS: u32;

    /// Layers of the model that captures between steps.
    const BACKGROUND_LAYERS: usize = 2;

    /// Whether what an op takes is what passes of the host's time, which tests hold.
    const TAKES_HOST_TIME: bool = true;

    /// Of its own compiler, the fewest alternatives that some piece of few rows must have, and the
    /// fewest ways of some part: what a compiler lost would be compared with nothing.
    const LEAST_WAYS: [usize; 2] = [1, 1];

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
    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (Box<dyn Device>, Box<dyn Compiler>);

    /// Another device of the same memory and context, as a second model has it.
    fn share(device: &dyn Device, registry: &Arc<OpRegistry>) -> Box<dyn Device> {
        device.share(Arc::clone(registry)).unwrap()
    }

    /// Other compilers for the same device, which compute the same in another way.
    fn others(_: &Arc<OpRegistry>, _: usize) -> Vec<Box<dyn Compiler>> {
        Vec::new()
    }
}

/// The CPU, which runs what either of its compilers makes.
fn cpu(registry: &OpRegistry, threads: usize, faults: DeviceFaults) -> Box<dyn Device> {
    let device = CpuDevice::new(absorbing_ops(registry), threads).unwrap();
    Box::new(FaultyDevice::new(device, faults))
}

/// The CPU with its own compiler.
pub(crate) struct Cpu;

impl Target for Cpu {
    const NAME: &'static str = "cpu";
    const PADDED_STEPS: u32 = 1000;
    const RANDOM_GRAPHS: u32 = 1000;

    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (Box<dyn Device>, Box<dyn Compiler>) {
        let device = cpu(registry, threads, DeviceFaults::default());
        (device, Box::new(CpuCompiler::new(Arc::clone(registry), threads)))
    }

    fn share(device: &dyn Device, registry: &Arc<OpRegistry>) -> Box<dyn Device> {
        device.share(absorbing_ops(registry)).unwrap()
    }

    fn others(registry: &Arc<OpRegistry>, threads: usize) -> Vec<Box<dyn Compiler>> {
        vec![Box::new(AbsorbingCompiler::new(registry, threads))]
    }
}

/// The CPU with a compiler that absorbs regions into the matmuls beside them.
pub(crate) struct AbsorbingCpu;

impl Target for AbsorbingCpu {
    const NAME: &'static str = "absorbing cpu";
    const RANDOM_GRAPHS: u32 = 60;

    fn make(registry: &Arc<OpRegistry>, threads: usize) -> (Box<dyn Device>, Box<dyn Compiler>) {
        let device = cpu(registry, threads, DeviceFaults::default());
        (device, Box::new(AbsorbingCompiler::new(registry, threads)))
    }

    fn share(device: &dyn Device, registry: &Arc<OpRegistry>) -> Box<dyn Device> {
        device.share(absorbing_ops(registry)).unwrap()
    }

    fn others(registry: &Arc<OpRegistry>, threads: usize) -> Vec<Box<dyn Compiler>> {
        vec![Box::new(CpuCompiler::new(Arc::clone(registry), threads))]
    }
}

/// The first CUDA device.
pub(crate) struct Cuda;

impl Target for Cuda {
    const NAME: &'static str = "cuda";
    const MOST_TOKENS: u64 = 4096;
    const TAKES_HOST_TIME: bool = false;
    const RANDOM_GRAPHS: u32 = 60;
    const BACKGROUND_LAYERS: usize = 28;
    const LEAST_WAYS: [usize; 2] = [2, 2];

    fn is_there() -> bool {
        static MISSING: OnceLock<Option<String>> = OnceLock::new();
        let missing = MISSING.get_or_init(|| {
            let probe = CudaProbe::run(&CudaOptions::default());
            probe.check(0).err().map(|reason| reason.to_string())
        });
        let Some(reason) = missing else { return true };
        skipped("PIECEWISE_REQUIRE_GPU", format!("on cuda: {reason}"));
        false
    }

    fn store() -> &'static dyn Store {
        static KERNELS: MemoryStore = MemoryStore::new();
        &KERNELS
    }

    fn make(registry: &Arc<OpRegistry>, _: usize) -> (Box<dyn Device>, Box<dyn Compiler>) {
        let open = |registry| CudaDevice::open(CudaOptions::default(), registry).unwrap();
        // Holds the context, which is otherwise made anew for every model.
        static HELD: OnceLock<Mutex<CudaDevice>> = OnceLock::new();
        HELD.get_or_init(|| Mutex::new(open(OpRegistry::new())));
        let device = open(OpRegistry::clone(registry));
        let compiler = device.compiler(Arc::clone(registry), CompilerOptions::default());
        (Box::new(device), compiler)
    }
}

/// A failure that is to come: the call of this kind that is so many away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strike {
    pub point: FaultPoint,
    pub kind: FaultKind,
    pub after: u32,
}

/// What a device that can be broken is told.
pub(crate) trait Breaks {
    fn plan(&self, strike: Strike);

    /// Calls at a point keep their caller for so long from now on, and no others do.
    fn slow(&self, point: FaultPoint, each: Duration);

    /// Whether what was planned has struck.
    fn has_struck(&self) -> bool;
}

/// A target whose devices fail as they are told.
pub(crate) trait Breakable: Target {
    type Breaks: Breaks;

    /// Which calls fail in turn, where not all do.
    const AFTER: &'static [u32];

    /// Whether opening a device anew takes everything that the process has on it.
    const IS_SHARED: bool = false;

    /// [`Target::make`], and what breaks the device.
    fn breakable(registry: &Arc<OpRegistry>) -> (Box<dyn Device>, Box<dyn Compiler>, Self::Breaks);
}

impl Breaks for DeviceFaults {
    fn plan(&self, Strike { point, kind, after }: Strike) {
        self.fail(DeviceFault { point, kind, after, times: 1 });
    }

    fn slow(&self, point: FaultPoint, each: Duration) {
        Self::slow(self, point, each);
    }

    fn has_struck(&self) -> bool {
        self.pending() == 0
    }
}

impl Breakable for Cpu {
    type Breaks = DeviceFaults;
    const AFTER: &'static [u32] = &[0, 1, 5, 21];

    fn breakable(registry: &Arc<OpRegistry>) -> (Box<dyn Device>, Box<dyn Compiler>, DeviceFaults) {
        let faults = DeviceFaults::default();
        let compiler = CpuCompiler::new(Arc::clone(registry), 1);
        (cpu(registry, 1, faults.clone()), Box::new(compiler), faults)
    }
}

/// The driver's call at a point.
fn call_at(point: FaultPoint) -> &'static str {
    match point {
        FaultPoint::Capture => "cuGraphInstantiateWithFlags",
        FaultPoint::Replay => "cuGraphLaunch",
        FaultPoint::Launch => "cuLaunchKernelEx",
        FaultPoint::Wait => "cuEventSynchronize",
        FaultPoint::Reopen => "cuDevicePrimaryCtxReset_v2",
    }
}

impl Breaks for Faults {
    fn slow(&self, point: FaultPoint, each: Duration) {
        Self::slow(self, call_at(point), each);
    }

    fn plan(&self, Strike { point, kind, after }: Strike) {
        let call = match (point, kind) {
            (FaultPoint::Capture, FaultKind::Refused) => "cuStreamBeginCapture_v2",
            (FaultPoint::Capture, FaultKind::BrokenCapture) => "cuStreamEndCapture",
            _ => call_at(point),
        };
        let fault = |code| CallFault::always(call, code).once_after(after);
        self.fail(match (kind, point) {
            (FaultKind::Refused, FaultPoint::Capture) => fault(900),
            (FaultKind::Refused, _) => fault(701),
            (FaultKind::OutOfMemory, _) => fault(2),
            (FaultKind::BrokenCapture, _) => fault(901),
            (FaultKind::Asynchronous, FaultPoint::Wait) => fault(700).sticky(),
            (FaultKind::Asynchronous, _) => fault(700).late(),
            (FaultKind::Sticky, _) => fault(719).sticky(),
        });
    }

    fn has_struck(&self) -> bool {
        self.pending() == 0
    }
}

impl Breakable for Cuda {
    type Breaks = Faults;
    const AFTER: &'static [u32] = &[0, 2, 9];
    const IS_SHARED: bool = true;

    fn breakable(registry: &Arc<OpRegistry>) -> (Box<dyn Device>, Box<dyn Compiler>, Faults) {
        let faults = Faults::default();
        let (options, ops) = (CudaOptions::default(), OpRegistry::clone(registry));
        let device = cuda::open_faulty(options, ops, &faults).unwrap();
        let compiler = device.compiler(Arc::clone(registry), CompilerOptions::default());
        (Box::new(device), compiler, faults)
    }
}

/// CUDA without a GPU: what calls of the driver do is as there, and every result is zeros.
pub(crate) struct SimulatedCuda;

impl Target for SimulatedCuda {
    const NAME: &'static str = "simulated cuda";
    const LEAST_WAYS: [usize; 2] = Cuda::LEAST_WAYS;
    const RANDOM_GRAPHS: u32 = 0;

    fn is_there() -> bool {
        static MISSING: OnceLock<Option<String>> = OnceLock::new();
        let missing = MISSING.get_or_init(|| {
            LazyNvrtc::new(library_dirs(&[]), None).get().err().map(|error| error.to_string())
        });
        let Some(reason) = missing else { return true };
        skipped("PIECEWISE_REQUIRE_NVRTC", format!("on simulated cuda: {reason}"));
        false
    }

    fn store() -> &'static dyn Store {
        static KERNELS: MemoryStore = MemoryStore::new();
        &KERNELS
    }

    fn make(registry: &Arc<OpRegistry>, _: usize) -> (Box<dyn Device>, Box<dyn Compiler>) {
        let (device, compiler, _) = Self::breakable(registry);
        (device, compiler)
    }
}

impl Breakable for SimulatedCuda {
    type Breaks = Faults;
    const AFTER: &'static [u32] = &[0, 3];

    fn breakable(registry: &Arc<OpRegistry>) -> (Box<dyn Device>, Box<dyn Compiler>, Faults) {
        let faults = Faults::default();
        let (options, ops) = (CudaOptions::default(), OpRegistry::clone(registry));
        let device = cuda::simulated(options, ops, &faults).unwrap();
        let compiler = device.compiler(Arc::clone(registry), CompilerOptions::default());
        (Box::new(device), compiler, faults)
    }
}

/// Runs a test in a process of its own, since what it does takes everything that its process has on
/// the device; `test` is its full name.
pub(crate) fn in_own_process(test: &str, body: impl FnOnce()) {
    in_own_process_with(test, &[], body);
}

/// The same with these variables in its environment.
pub(crate) fn in_own_process_with(test: &str, variables: &[(&str, &OsStr)], body: impl FnOnce()) {
    const VARIABLE: &str = "PIECEWISE_ALONE";
    if std::env::var(VARIABLE).is_ok_and(|alone| alone == test) {
        return body();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, test);
    child.envs(variables.iter().copied());
    let output = child.bounded_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{test}: {said}{errors}");
}
