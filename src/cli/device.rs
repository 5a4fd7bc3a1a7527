//! `--device`: where a model runs, and what it is compiled for.

use super::progress::BuildBars;
use piecewise::device::{DeviceSpec, OpenDevice};
use piecewise_backend::compiler::{Compiler, NoStore};
use piecewise_backend::cuda::Faults;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::config::RuntimeConfig;
use piecewise_runtime::engine::{DynEngine, Engine};
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

/// An engine on a device over a planned module, with its weights loaded and its graphs captured.
pub(crate) fn engine_on(
    device: DeviceSpec,
    module: Module,
    options: BuildOptions,
    config: &RuntimeConfig,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn DynEngine>> {
    let registry = Arc::new(OpRegistry::builtin());
    match resolved(device).open(&registry, threads())? {
        OpenDevice::Cpu(device, compiler) => {
            build(module, options, config, &compiler, *device, weights)
        }
        OpenDevice::Cuda(device, compiler) => {
            build(module, options, config, &compiler, *device, weights)
        }
    }
}

fn build<D: Device + 'static>(
    module: Module,
    options: BuildOptions,
    config: &RuntimeConfig,
    compiler: &dyn Compiler,
    device: D,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn DynEngine>> {
    let mut bars = BuildBars::new();
    let model = CompiledModel::build(
        Arc::new(module),
        options,
        compiler,
        &NoStore,
        device,
        weights,
        &mut |progress| bars.show(progress),
    );
    bars.finish();
    let model = model.map_err(|error| match error {
        ModelError::Device(short @ DeviceError::OutOfMemory { .. }) => anyhow::Error::from(short)
            .context("the model does not fit: lower max_num_tokens, max_num_seqs or max_seq_len"),
        other => other.into(),
    })?;
    let options = config.engine_options(&model)?;
    Ok(Box::new(Engine::new(model, options)?))
}
