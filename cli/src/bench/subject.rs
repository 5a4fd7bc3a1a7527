//! What is measured: a published shape with random weights, or a model folder.

use super::super::cache_flags::open_store;
use super::super::device::timer_on;
use super::super::load::{check_checkpoint, stored_dtypes};
use super::args::BenchArgs;
use super::report::Start;
use super::weights::PresetWeights;
use anyhow::{Context, bail, ensure};
use piecewise::models::{Checkpoint, DecoderConfig, DecoderLimits, decoder};
use piecewise_backend::compiler::Store;
use piecewise_backend::store::MemoryStore;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::CacheConfig;
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::measure::DynStepTimer;
use piecewise_runtime::mode::{GraphMode, Level};
use piecewise_runtime::model::{BuildOptions, CaptureWhen, Checks, OnCaptureFailure};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::sizes::SizeList;
use std::path::Path;
use std::time::Instant;

/// The position of the sampled ids among a decoder's outputs.
const SAMPLED: usize = 1;

/// A model to measure.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) config: DecoderConfig,
    pub(super) dtype: DType,
    checkpoint: Option<Checkpoint>,
}

/// The lists and bounds that a subject is built for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    /// Sizes in tokens, ascending.
    pub(super) tokens: Vec<u64>,
    /// Decode batches, ascending.
    pub(super) batches: Vec<u64>,
    /// The most tokens of a step.
    pub(super) max_tokens: u64,
    /// Positions of each sequence, whole pages.
    pub(super) positions: Vec<u64>,
    /// The mode whose programs there are.
    pub(super) mode: GraphMode,
}

impl Subject {
    /// Reads the configuration, and opens the weights of a folder.
    pub(super) fn open(args: &BenchArgs) -> anyhow::Result<Self> {
        let given = args.dtype.map(DType::from);
        if let Some(preset) = args.preset {
            let config = preset.config();
            let dtype = given.or(config.dtype).unwrap_or(DType::BF16);
            return Ok(Self { name: preset.name().to_owned(), config, dtype, checkpoint: None });
        }
        let Some(folder) = &args.model else { bail!("give --preset or --model") };
        let config = DecoderConfig::load(folder)
            .with_context(|| format!("can't use the model in {}", folder.display()))?;
        let dtype = given.or(config.dtype).unwrap_or(DType::F32);
        let name = folder.file_name().map_or_else(
            || folder.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        Ok(Self { name, config, dtype, checkpoint: Some(Checkpoint::open(folder)?) })
    }

    /// Plans, compiles and loads; captures nothing yet.
    pub(super) fn build(
        &self,
        args: &BenchArgs,
        bounds: &Bounds,
    ) -> anyhow::Result<(Box<dyn DynStepTimer>, Start)> {
        let started = Instant::now();
        let longest = bounds.positions.iter().copied().chain(args.max_seq_len).max();
        let longest = longest.unwrap_or(1).max(1);
        let most = self.config.max_position_embeddings as u64;
        ensure!(
            longest <= most,
            "a sequence comes to {longest} positions, and {} was made for {most}; lower \
             --context, --mixed, --max-seq-len or --steps",
            self.name
        );
        let sequences = bounds.positions.len() as u64;
        let limits = DecoderLimits {
            activations: self.dtype,
            max_tokens: bounds.max_tokens,
            max_rows: sequences,
            max_sequences: sequences,
            max_length: longest,
            kv_rows: bounds.positions.iter().sum(),
        };
        let graph = match &self.checkpoint {
            Some(checkpoint) => {
                let dtypes = stored_dtypes(checkpoint);
                let stored = move |name: &str| dtypes.get(name).copied();
                let graph = decoder(&self.config, &limits, stored)?;
                check_checkpoint(&graph, checkpoint)?;
                graph
            }
            None => {
                let dtype = self.dtype;
                decoder(&self.config, &limits, move |_| Some(dtype))?
            }
        };
        let (module, _) = plan(graph, Level::Piecewise, None, Vec::new())?;
        let planned = started.elapsed();
        let list = |name, sizes: &[u64], bound| {
            SizeList::new(name, sizes.to_vec(), "the largest step", bound)
        };
        let options = BuildOptions {
            dispatcher: Dispatcher {
                mode: bounds.mode,
                tokens: list("--capture-num-tokens", &bounds.tokens, bounds.max_tokens)?,
                batches: list("--batch", &bounds.batches, sequences)?,
                query_lengths: vec![1],
                max_tokens: bounds.max_tokens,
                max_rows: sequences,
                max_sequences: sequences,
                padding: true,
                own: Vec::new(),
            },
            max_logit_rows: sequences,
            read_outputs: vec![SAMPLED],
            capture: CaptureWhen::Lazy,
            on_capture_failure: OnCaptureFailure::Error,
            tune: match args.no_tune || args.startup {
                true => TuneMode::Load,
                false => TuneMode::Measure,
            },
            strict: false,
            checks: Checks::default(),
        };
        let preset = PresetWeights::default();
        let weights: &dyn WeightSource = match &self.checkpoint {
            Some(checkpoint) => checkpoint,
            None => &preset,
        };
        let store = store_of(args.cache_dir.as_deref());
        let (device, stamps) = (args.device, args.timeline.is_some());
        let timer = timer_on(device, stamps, module, options, &*store, weights, &bounds.positions)?;
        let all = started.elapsed() - planned;
        let start = Start::of(planned, all, &*timer);
        Ok((timer, start))
    }
}

/// The cache in a folder; without one, what is compiled is gone with the process.
fn store_of(dir: Option<&Path>) -> Box<dyn Store> {
    match dir {
        Some(dir) => {
            open_store(&CacheConfig { dir: Some(dir.to_owned()), ..CacheConfig::default() })
        }
        None => Box::new(MemoryStore::new()),
    }
}
