//! `--device`: where a model runs, and what it is compiled for.

use super::progress::BuildBars;
use super::settings::Settings;
use piecewise::device::{DeviceSpec, OpenDevice};
use piecewise_backend::compiler::{Compiler, Store};
use piecewise_backend::cuda::{CudaOptions, Faults};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::measure::MeasuredDevice;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::engine::{BatchingEngine, Engine};
use piecewise_runtime::measure::{DynStepTimer, StepTimer};
use piecewise_runtime::model::{BuildOptions, CompiledModel, ModelError};
use std::io::Write;
use std::sync::Arc;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What `auto` comes to on this machine; says on standard error when that is the processor, and
/// why.
fn resolved(device: DeviceSpec) -> DeviceSpec {
    let (device, reason) = device.resolve(&Faults::default());
    if let Some(reason) = reason {
        // A closed standard error leaves nobody to tell.
        let _ = writeln!(std::io::stderr(), "running on the CPU: {reason}");
    }
    device
}

/// The compiler alone, for commands that run nothing.
pub(crate) fn compiler_for(device: DeviceSpec) -> anyhow::Result<Box<dyn Compiler>> {
    Ok(resolved(device).compiler(&Arc::new(OpRegistry::builtin()), threads())?)
}

/// Builds a model where it runs, for one of two uses.
trait Build {
    type Built;
    fn build<D: MeasuredDevice + 'static>(
        self,
        compiler: &dyn Compiler,
        device: D,
    ) -> anyhow::Result<Self::Built>;
}

/// Opens a device that runs and builds on it; with `stamps` one whose blocks note their times.
fn build_on<B: Build>(device: DeviceSpec, stamps: bool, build: B) -> anyhow::Result<B::Built> {
    let registry = Arc::new(OpRegistry::builtin());
    let options = CudaOptions { stamps, ..CudaOptions::default() };
    match resolved(device).open_as(&registry, threads(), options)? {
        OpenDevice::Cpu(..) if stamps => {
            anyhow::bail!("--timeline needs a CUDA device: the processor runs no blocks")
        }
        OpenDevice::Cpu(device, compiler) => build.build(&compiler, *device),
        OpenDevice::Cuda(device, compiler) => build.build(&compiler, *device),
    }
}

/// An engine on a device over a planned module, with its weights loaded and its graphs captured.
pub(crate) fn engine_on(
    settings: &Settings,
    module: Module,
    roles: RoleMap,
    options: BuildOptions,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn Engine>> {
    build_on(settings.device, false, EngineBuild { module, roles, options, settings, weights })
}

struct EngineBuild<'a> {
    module: Module,
    roles: RoleMap,
    options: BuildOptions,
    settings: &'a Settings,
    weights: &'a dyn WeightSource,
}

impl Build for EngineBuild<'_> {
    type Built = Box<dyn Engine>;

    fn build<D: MeasuredDevice + 'static>(
        self,
        compiler: &dyn Compiler,
        device: D,
    ) -> anyhow::Result<Self::Built> {
        let store = self.settings.store();
        let model = build_model(self.module, self.options, compiler, store, device, self.weights)
            .map_err(|error| {
            with_remedy(error, "max_num_tokens, max_num_seqs or max_seq_len")
        })?;
        let options = self.settings.config.engine_options(&model, &self.roles);
        Ok(Box::new(BatchingEngine::new(model, self.roles, options)?))
    }
}

/// A timer on a device over a planned module, with its weights made and nothing captured or
/// everything, as `options` say; its sequences have room for `positions`. With `stamps` it can
/// tell where and when blocks ran.
pub(crate) fn timer_on(
    device: DeviceSpec,
    stamps: bool,
    module: Module,
    options: BuildOptions,
    store: &dyn Store,
    weights: &dyn WeightSource,
    positions: &[u64],
) -> anyhow::Result<Box<dyn DynStepTimer>> {
    build_on(device, stamps, TimerBuild { module, options, store, weights, positions })
}

struct TimerBuild<'a> {
    module: Module,
    options: BuildOptions,
    store: &'a dyn Store,
    weights: &'a dyn WeightSource,
    positions: &'a [u64],
}

impl Build for TimerBuild<'_> {
    type Built = Box<dyn DynStepTimer>;

    fn build<D: MeasuredDevice + 'static>(
        self,
        compiler: &dyn Compiler,
        device: D,
    ) -> anyhow::Result<Self::Built> {
        let model =
            build_model(self.module, self.options, compiler, self.store, device, self.weights)
                .map_err(|error| with_remedy(error, "--batch, --context, --mixed or --steps"))?;
        let ops = OpRegistry::builtin();
        let roles = RoleMap::resolve(model.module().graph(), model.symbols(), &ops)?;
        Ok(Box::new(StepTimer::new(model, roles, self.positions)?))
    }
}

/// Says what to lower where memory is short.
fn with_remedy(error: anyhow::Error, bounds: &str) -> anyhow::Error {
    match error.downcast_ref() {
        Some(ModelError::Device(DeviceError::OutOfMemory { .. })) => {
            error.context(format!("the model does not fit: lower {bounds}"))
        }
        _ => error,
    }
}

fn build_model<D: Device>(
    module: Module,
    options: BuildOptions,
    compiler: &dyn Compiler,
    store: &dyn Store,
    device: D,
    weights: &dyn WeightSource,
) -> anyhow::Result<CompiledModel<D>> {
    let mut bars = BuildBars::new();
    let model = CompiledModel::build(
        Arc::new(module),
        options,
        compiler,
        store,
        device,
        weights,
        &mut |progress| bars.show(progress),
    );
    bars.finish();
    Ok(model?)
}
