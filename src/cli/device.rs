//! `--device`: where a model runs, and what it is compiled for.

use super::progress::BuildBars;
use super::settings::Settings;
use anyhow::{Context, bail};
use piecewise_backend::compiler::Compiler;
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::cuda::{
    Arch, CudaCompiler, CudaDevice, CudaOptions, CudaProbe, Faults, LazyNvrtc, library_dirs,
};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::engine::{DynEngine, Engine};
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
        let probe = CudaProbe::run(&library_dirs(&[]), &Faults::default());
        match probe.check(0).and_then(|_| probe.check_compiler()) {
            Ok(()) => Self::Cuda(0),
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
                let nvrtc = LazyNvrtc::new(library_dirs(&[]), None);
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
    let compiler = device.compiler(Arc::clone(registry));
    Ok((device, compiler))
}

/// An engine on a device over a planned module, with its weights loaded and its graphs captured.
pub(crate) fn engine_on(
    settings: &Settings,
    module: Module,
    options: BuildOptions,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn DynEngine>> {
    let registry = Arc::new(OpRegistry::builtin());
    match settings.device.resolved() {
        DeviceArg::Target(arch) => {
            bail!(
                "target cuda:{arch} is an architecture to compile for; to run, write cpu, cuda or \
                 cuda:N"
            )
        }
        DeviceArg::Cuda(ordinal) => {
            let (device, compiler) = open_cuda(ordinal, &registry)?;
            build(module, options, settings, &compiler, device, weights)
        }
        DeviceArg::Cpu | DeviceArg::Auto => {
            let compiler = CpuCompiler::new(Arc::clone(&registry), threads());
            let device = CpuDevice::new(registry, threads())?;
            build(module, options, settings, &compiler, device, weights)
        }
    }
}

fn build<D: Device + 'static>(
    module: Module,
    options: BuildOptions,
    settings: &Settings,
    compiler: &dyn Compiler,
    device: D,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn DynEngine>> {
    let mut bars = BuildBars::new();
    let store = settings.store();
    let model = CompiledModel::build(
        Arc::new(module),
        options,
        compiler,
        &*store,
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
    let options = settings.config.engine_options(&model)?;
    Ok(Box::new(Engine::new(model, options)?))
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
