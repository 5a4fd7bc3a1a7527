//! What is measured: a published shape with random weights, or a model folder.

use super::super::load::with_remedy;
use super::super::progress::watcher;
use super::bounds::Bounds;
use super::report::Start;
use super::settings::Bench;
use crate::preset_weights;
use anyhow::{bail, ensure};
use piecewise::assembly::{Assembly, Notice};
use piecewise::device::{DeviceSpec, OpenDevice, all_threads};
use piecewise_backend::cuda::CudaOptions;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::ConfigWarning;
use piecewise_runtime::measure::ModelTimer;
use piecewise_runtime::words::Quantize;
use std::time::Instant;

pub(super) struct Subject {
    pub(super) name: String,
    /// Ids are below this.
    pub(super) vocab: u64,
    /// The longest sequence that the model was made for.
    pub(super) longest: u64,
    pub(super) dtype: DType,
    assembly: Option<Assembly>,
}

impl Subject {
    /// Reads the configuration, and opens the weights of a folder.
    pub(super) fn open(bench: &Bench) -> anyhow::Result<Self> {
        let (name, assembly) = match (bench.preset, &bench.model) {
            (Some(preset), _) => {
                let assembly = preset_weights::assembly(preset, bench.config.dtype);
                (preset.name().to_owned(), assembly.registries(bench.registries.clone()))
            }
            (None, Some(folder)) => {
                let name = folder.file_name().unwrap_or(folder.as_os_str());
                (name.to_string_lossy().into_owned(), bench.registries.folder(folder)?)
            }
            (None, None) => bail!("give --preset or --model"),
        };
        let name = match bench.config.quantize {
            Quantize::None => name,
            format => format!("{name}-{format}"),
        };
        let Some(facts) = assembly.facts() else { bail!("{name} is no decoder") };
        let dtype = bench.config.dtype.or(facts.dtype).unwrap_or(DType::F32);
        let vocab = facts.vocab_size as u64;
        let longest = facts.longest_sequence.map_or(u64::MAX, |(longest, _)| longest as u64);
        Ok(Self { name, vocab, longest, dtype, assembly: Some(assembly) })
    }

    /// The model with its settings, which it is put together from once.
    pub(super) fn assembly(&mut self, bench: &Bench, bounds: &Bounds) -> anyhow::Result<Assembly> {
        let longest = bounds.positions.iter().copied().chain(bench.longest()).max();
        let longest = longest.unwrap_or(1).max(1);
        let most = self.longest;
        ensure!(
            longest <= most,
            "a sequence comes to {longest} positions, and {} was made for {most}; lower \
             --context, --mixed, --max-seq-len or --steps",
            self.name
        );
        let Some(assembly) = self.assembly.take() else { bail!("a subject is built once") };
        let usual = bench.config.max_seq_len.min(most);
        let assembly = bench.configure(assembly, bounds, longest.max(usual));
        let own = bounds_of_its_own(&assembly, bench)?;
        let mut watch = watcher();
        let assembly = assembly.check_weights().watch(move |notice| match notice {
            Notice::Warning(text) if own.iter().any(|own| own == text) => {}
            notice => watch(notice),
        });
        Ok(match &bench.timeline {
            Some(_) => {
                let device = assembly.settings()?.device;
                assembly.on(&noting_device(device)?)
            }
            None => assembly,
        })
    }

    /// Plans, compiles and loads; captures nothing yet.
    pub(super) fn build(
        &mut self,
        bench: &Bench,
        bounds: &Bounds,
    ) -> anyhow::Result<(ModelTimer, Start)> {
        let started = Instant::now();
        let planned = bench.dumps.plan(self.assembly(bench, bounds)?)?;
        ensure!(!bench.dumps.stops(), "the passes were stopped early; there is nothing to measure");
        let planned_in = started.elapsed();
        let free = planned.device()?.free_bytes()?;
        let timer = planned.timer(&bounds.positions);
        let timer = timer.map_err(|e| with_remedy(e, "--batch, --context, --mixed or --steps"))?;
        let mut start = Start::of(planned_in, started.elapsed() - planned_in, timer.model());
        start.free_bytes = timer.free_bytes().map(|built| [free, built]);
        Ok((timer, start))
    }
}

/// What is warned about where nobody but the rows chose how far the sizes go.
fn bounds_of_its_own(assembly: &Assembly, bench: &Bench) -> anyhow::Result<Vec<String>> {
    let is_own = |warning: &ConfigWarning| match warning {
        ConfigWarning::DoesNotReach { list, .. } => !bench.chose(list),
        _ => false,
    };
    let warnings = assembly.settings()?.warnings();
    Ok(warnings.iter().filter(|warning| is_own(warning)).map(ToString::to_string).collect())
}

/// A device whose blocks note where and when they run.
fn noting_device(device: DeviceSpec) -> anyhow::Result<OpenDevice> {
    let (device, _) = device.resolve();
    ensure!(
        matches!(device, DeviceSpec::Cuda(_)),
        "--timeline needs a CUDA device: the processor runs no blocks"
    );
    let options = CudaOptions { stamps: true, ..CudaOptions::default() };
    Ok(device.open_as(all_threads(), options)?)
}
