//! A device that models are built on, whatever it is: nothing above this file has it as a parameter.

use super::error::OpenError;
use super::spec::DeviceSpec;
use piecewise_backend::compiler::{Compiler, Store};
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{Arch, CudaCompiler, CudaDevice, LazyNvrtc, library_dirs};
use piecewise_backend::measure::MeasuredDevice;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::engine::{BatchingEngine, Engine, EngineError, EngineOptions};
use piecewise_runtime::measure::{MeasureError, ModelTimer, StepTimer};
use piecewise_runtime::steps::{BuildOptions, CompiledModel, Model};
use piecewise_runtime::store::{CompiledPieces, LateCompiler};
use piecewise_runtime::words::{ModelError, Progress};
use std::fmt::Debug;
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
pub struct OpenDevice(Arc<dyn Opened>);

fn lock<D>(device: &Mutex<D>) -> MutexGuard<'_, D> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device with how models are built on it.
#[derive(Debug)]
struct Own<D> {
    spec: DeviceSpec,
    device: Mutex<D>,
    share: fn(&D, Arc<OpRegistry>) -> Result<D, OpenError>,
    compiler: fn(&D, Arc<OpRegistry>, CompilerOptions) -> Box<dyn Compiler>,
}

impl OpenDevice {
    /// A device of one's own, such as one that counts the launches of another; `spec` is what errors and
    /// reports call it. `share` gives the same hardware to a further model: memory and a stream of its
    /// own, and these ops. `compiler` makes code for it.
    pub fn own<D: MeasuredDevice + Debug>(
        spec: DeviceSpec,
        device: D,
        share: fn(&D, Arc<OpRegistry>) -> Result<D, OpenError>,
        compiler: fn(&D, Arc<OpRegistry>, CompilerOptions) -> Box<dyn Compiler>,
    ) -> Self {
        Self(Arc::new(Own { spec, device: Mutex::new(device), share, compiler }))
    }

    /// A compiler for an architecture.
    pub(super) fn of_arch(arch: Arch) -> Self {
        Self(Arc::new(arch))
    }

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

/// A processor that was opened by one's own code.
impl From<CpuDevice> for OpenDevice {
    fn from(device: CpuDevice) -> Self {
        Self::own(
            DeviceSpec::Cpu,
            device,
            |device, ops| Ok(device.share(ops)),
            |device, ops, _| Box::new(CpuCompiler::new(ops, device.threads())),
        )
    }
}

/// A CUDA device that was opened with settings of one's own, or over another driver.
impl From<CudaDevice> for OpenDevice {
    fn from(device: CudaDevice) -> Self {
        let share = |device: &CudaDevice, ops: Arc<OpRegistry>| {
            let ordinal = device.report().ordinal;
            let shared = device.share(OpRegistry::clone(&ops));
            shared.map_err(|source| OpenError::Cuda { ordinal, source })
        };
        let spec = DeviceSpec::Cuda(device.report().ordinal);
        Self::own(spec, device, share, |device, ops, options| {
            Box::new(options.of(device.compiler(ops)))
        })
    }
}

impl CompilerOptions {
    fn of(self, compiler: CudaCompiler) -> CudaCompiler {
        compiler.with_batch_invariance(self.batch_invariant).with_first_ways(self.first_ways)
    }
}

/// A device, or an architecture to compile for, whatever it is.
pub(crate) trait Opened: Debug + Send + Sync {
    fn spec(&self) -> DeviceSpec;

    fn free_bytes(&self) -> Result<u64, OpenError>;

    fn compiler(&self, ops: Arc<OpRegistry>, options: CompilerOptions) -> Box<dyn Compiler>;

    /// Room for one model.
    fn share(&self, ops: &Arc<OpRegistry>) -> Result<Box<dyn Room>, OpenError>;
}

impl<D: MeasuredDevice + Debug> Opened for Own<D> {
    fn spec(&self) -> DeviceSpec {
        self.spec
    }

    fn free_bytes(&self) -> Result<u64, OpenError> {
        Ok(lock(&self.device).free_bytes())
    }

    fn compiler(&self, ops: Arc<OpRegistry>, options: CompilerOptions) -> Box<dyn Compiler> {
        (self.compiler)(&lock(&self.device), ops, options)
    }

    fn share(&self, ops: &Arc<OpRegistry>) -> Result<Box<dyn Room>, OpenError> {
        Ok(Box::new((self.share)(&lock(&self.device), Arc::clone(ops))?))
    }
}

/// There is only a compiler.
impl Opened for Arch {
    fn spec(&self) -> DeviceSpec {
        DeviceSpec::Arch(*self)
    }

    fn free_bytes(&self) -> Result<u64, OpenError> {
        Err(OpenError::NoDevice { arch: *self })
    }

    fn compiler(&self, ops: Arc<OpRegistry>, options: CompilerOptions) -> Box<dyn Compiler> {
        let nvrtc = LazyNvrtc::new(library_dirs(&[]), None);
        Box::new(options.of(CudaCompiler::new(ops, *self, nvrtc)))
    }

    fn share(&self, _: &Arc<OpRegistry>) -> Result<Box<dyn Room>, OpenError> {
        Err(OpenError::NoDevice { arch: *self })
    }
}

/// What a model is built of, besides a device.
pub(crate) struct ModelParts {
    pub(crate) module: Arc<Module>,
    pub(crate) options: BuildOptions,
    pub(crate) compiled: CompiledPieces,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) weights: Arc<dyn WeightSource>,
}

/// Where one model is built.
pub(crate) trait Room {
    fn build(
        self: Box<Self>,
        parts: ModelParts,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Box<dyn Built>, ModelError>;
}

impl<D: MeasuredDevice> Room for D {
    fn build(
        self: Box<Self>,
        parts: ModelParts,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Box<dyn Built>, ModelError> {
        let ModelParts { module, options, compiled, store, weights } = parts;
        let build = CompiledModel::build;
        Ok(Box::new(build(module, options, compiled, &*store, *self, weights, progress)?))
    }
}

/// A model on the device that it was built for.
pub(crate) trait Built {
    fn specialize_late(&mut self, sizes: Vec<u64>, compiler: LateCompiler, tune: TuneMode);

    fn limit_memory(&mut self, from: &'static str, bytes: u64);

    fn name_ranges(&mut self);

    fn into_model(self: Box<Self>) -> Box<dyn Model>;

    /// Its options are what the model takes at the most, reduced.
    fn into_engine(
        self: Box<Self>,
        roles: RoleMap,
        reduced: &dyn Fn(EngineOptions) -> EngineOptions,
    ) -> Result<Box<dyn Engine>, EngineError>;

    fn into_timer(
        self: Box<Self>,
        roles: RoleMap,
        positions: &[u64],
    ) -> Result<Box<dyn StepTimer>, MeasureError>;
}

impl<D: MeasuredDevice> Built for CompiledModel<D> {
    fn specialize_late(&mut self, sizes: Vec<u64>, compiler: LateCompiler, tune: TuneMode) {
        Self::specialize_late(self, sizes, compiler, tune);
    }

    fn limit_memory(&mut self, from: &'static str, bytes: u64) {
        Self::limit_memory(self, from, bytes);
    }

    fn name_ranges(&mut self) {
        Self::name_ranges(self);
    }

    fn into_model(self: Box<Self>) -> Box<dyn Model> {
        self
    }

    fn into_engine(
        self: Box<Self>,
        roles: RoleMap,
        reduced: &dyn Fn(EngineOptions) -> EngineOptions,
    ) -> Result<Box<dyn Engine>, EngineError> {
        let options = reduced(EngineOptions::of(&self, &roles));
        Ok(Box::new(BatchingEngine::new(*self, roles, options)?))
    }

    fn into_timer(
        self: Box<Self>,
        roles: RoleMap,
        positions: &[u64],
    ) -> Result<Box<dyn StepTimer>, MeasureError> {
        Ok(Box::new(ModelTimer::new(*self, roles, positions)?))
    }
}
