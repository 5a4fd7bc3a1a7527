//! `--device`: where a model runs, and what it is compiled for.

use super::progress::BuildBars;
use anyhow::{Context, bail};
use piecewise_backend::compiler::{Compiler, NoStore};
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{
    Arch, CudaCompiler, CudaDevice, CudaOptions, CudaProbe, Faults, Nvrtc, library_dirs,
};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::measure::MeasuredDevice;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::config::RuntimeConfig;
use piecewise_runtime::engine::{DynEngine, Engine};
use piecewise_runtime::measure::{DynStepTimer, StepTimer};
use piecewise_runtime::model::{BuildOptions, CompiledModel, ModelError};
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;

/// `--device`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceArg {
    /// The processor.
    Cpu,
    /// The CUDA device of this number.
    Cuda(u32),
    /// The first CUDA device where models run on it, else the processor.
    Auto,
    /// A CUDA architecture, to compile for without a device.
    Target(Arch),
}

impl FromStr for DeviceArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}` is no device; write cpu, cuda, cuda:N, auto, or to inspect without a \
                 GPU cuda:sm_90"
            )
        };
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            None if text == "auto" => Ok(Self::Auto),
            Some(("cuda", arch)) if arch.starts_with("sm_") => arch.parse().map(Self::Target),
            Some(("cuda", number)) => number.parse().map(Self::Cuda).map_err(|_| expected()),
            _ => Err(expected()),
        }
    }
}

impl std::fmt::Display for DeviceArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Auto => f.write_str("auto"),
            Self::Target(arch) => write!(f, "cuda:{arch}"),
        }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl DeviceArg {
    /// What `auto` comes to on this machine; says on standard error when that is the processor,
    /// and why.
    fn resolved(self) -> Self {
        if self != Self::Auto {
            return self;
        }
        match CudaProbe::run(&library_dirs(&[]), &Faults::default()).check(0) {
            Ok(_) => Self::Cuda(0),
            Err(reason) => {
                // A closed standard error leaves nobody to tell.
                let _ = writeln!(std::io::stderr(), "running on the CPU: {reason}");
                Self::Cpu
            }
        }
    }

    /// The compiler alone, for commands that run nothing.
    pub(crate) fn compiler(self) -> anyhow::Result<Box<dyn Compiler>> {
        let registry = Arc::new(OpRegistry::builtin());
        Ok(match self.resolved() {
            Self::Target(arch) => {
                let nvrtc = Nvrtc::open(&library_dirs(&[]), None)?;
                if !nvrtc.archs().contains(&arch) {
                    let known: Vec<_> = nvrtc.archs().iter().map(Arch::to_string).collect();
                    bail!(
                        "{} does not know {arch}; it knows {}",
                        nvrtc.identity(),
                        known.join(" ")
                    );
                }
                Box::new(CudaCompiler::new(registry, arch, nvrtc))
            }
            Self::Cuda(ordinal) => Box::new(open_cuda(ordinal, &registry)?.1),
            Self::Cpu | Self::Auto => Box::new(CpuCompiler::new(registry, threads())),
        })
    }
}

fn open_cuda(
    ordinal: u32,
    registry: &Arc<OpRegistry>,
) -> anyhow::Result<(CudaDevice, CudaCompiler)> {
    let options = CudaOptions { ordinal, ..CudaOptions::default() };
    let device = CudaDevice::open(options, OpRegistry::clone(registry))
        .with_context(|| format!("can't run on cuda:{ordinal}; `piecewise doctor` says more"))?;
    let compiler = device.compiler(Arc::clone(registry)).context("NVRTC is not loaded")?;
    Ok((device, compiler))
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

/// Opens a device that runs and builds on it.
fn build_on<B: Build>(device: DeviceArg, build: B) -> anyhow::Result<B::Built> {
    let registry = Arc::new(OpRegistry::builtin());
    match device.resolved() {
        DeviceArg::Target(arch) => {
            bail!(
                "target cuda:{arch} is an architecture to compile for; to run, write cpu, cuda or \
                 cuda:N"
            )
        }
        DeviceArg::Cuda(ordinal) => {
            let (device, compiler) = open_cuda(ordinal, &registry)?;
            build.build(&compiler, device)
        }
        DeviceArg::Cpu | DeviceArg::Auto => {
            let compiler = CpuCompiler::new(Arc::clone(&registry), threads());
            let device = CpuDevice::new(registry, threads())?;
            build.build(&compiler, device)
        }
    }
}

/// An engine on a device over a planned module, with its weights loaded and its graphs captured.
pub(crate) fn engine_on(
    device: DeviceArg,
    module: Module,
    options: BuildOptions,
    config: &RuntimeConfig,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn DynEngine>> {
    build_on(device, EngineBuild { module, options, config, weights })
}

struct EngineBuild<'a> {
    module: Module,
    options: BuildOptions,
    config: &'a RuntimeConfig,
    weights: &'a dyn WeightSource,
}

impl Build for EngineBuild<'_> {
    type Built = Box<dyn DynEngine>;

    fn build<D: MeasuredDevice + 'static>(
        self,
        compiler: &dyn Compiler,
        device: D,
    ) -> anyhow::Result<Self::Built> {
        let model = build_model(self.module, self.options, compiler, device, self.weights)
            .map_err(|error| with_remedy(error, "max_num_tokens, max_num_seqs or max_seq_len"))?;
        let options = self.config.engine_options(&model)?;
        Ok(Box::new(Engine::new(model, options)?))
    }
}

/// A timer on a device over a planned module, with its weights made and nothing captured or
/// everything, as `options` say; its sequences have room for `positions`.
pub(crate) fn timer_on(
    device: DeviceArg,
    module: Module,
    options: BuildOptions,
    weights: &dyn WeightSource,
    positions: &[u64],
) -> anyhow::Result<Box<dyn DynStepTimer>> {
    build_on(device, TimerBuild { module, options, weights, positions })
}

struct TimerBuild<'a> {
    module: Module,
    options: BuildOptions,
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
        let model = build_model(self.module, self.options, compiler, device, self.weights)
            .map_err(|error| with_remedy(error, "--batch, --context, --mixed or --steps"))?;
        Ok(Box::new(StepTimer::new(model, self.positions)?))
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
    device: D,
    weights: &dyn WeightSource,
) -> anyhow::Result<CompiledModel<D>> {
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
    Ok(model?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_back_as_they_are_written() {
        for text in ["cpu", "auto", "cuda:0", "cuda:3", "cuda:sm_90"] {
            assert_eq!(text.parse::<DeviceArg>().map(|d| d.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("cuda".parse(), Ok(DeviceArg::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:sm_", "cpu:0", "cuda:x"] {
            assert!(text.parse::<DeviceArg>().is_err(), "{text}");
        }
    }
}
