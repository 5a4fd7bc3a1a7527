//! Flags of every command that compiles a model, and the layers of configuration that they make.

use super::amounts::parse_bytes;
use super::cache_flags::CacheFlags;
use super::cuda_args::CudaArgs;
use super::hub::folder_of;
use super::named::{float, named};
use super::set_keys::{SET, put, put_by, turn_off, turn_on};
use anyhow::bail;
use piecewise::device::DeviceSpec;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigLayers, ShortSizeLists, Sizes};
use piecewise_runtime::words::{CaptureWhen, CompileLevel, GraphMode, OnCaptureFailure, Quantize};
use std::path::{Path, PathBuf};

/// The file that is read from the current directory where no other is named.
pub(crate) const CONFIG_FILE: &str = "piecewise.toml";

/// Where a model comes from, and what it is made for.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// A Hugging Face model folder, or a model of the hub by its name, such as Qwen/Qwen3-0.6B, or with a
    /// revision Qwen/Qwen3-0.6B@main: what its cache lacks is downloaded.
    #[arg(short, long, value_name = "DIR|NAME")]
    pub model: PathBuf,
    #[command(flatten)]
    pub bounds: BoundArgs,
}

impl ModelArgs {
    /// Has the folder of a model of the hub, downloaded where it is missing.
    pub(crate) fn bring(&mut self) -> anyhow::Result<()> {
        self.model = folder_of(&self.model)?;
        Ok(())
    }
}

/// What a model is made for.
#[derive(Debug, clap::Args)]
pub(crate) struct BoundArgs {
    /// The dtype of activations and of the KV cache: f32, bf16 or f16; the checkpoint's own by
    /// default.
    #[arg(long, value_parser = float)]
    pub dtype: Option<DType>,
    /// Round linear layers in f32, bf16 or f16 when they are loaded: to fp8 (e4m3, a scale for each row)
    /// or int4 (a scale for each 128 columns), or none of them; the head, embeddings and norms stay
    /// [default: none].
    #[arg(long, value_parser = named::<Quantize>, value_name = "FORMAT")]
    pub quantize: Option<Quantize>,
    /// The most tokens of a step; longer prompts are cut into chunks [default: 512].
    #[arg(long, alias = "max-num-batched-tokens", value_name = "N")]
    pub max_num_tokens: Option<u64>,
    /// The most sequences that run at once [default: 64, or the tokens of a step where they are
    /// fewer].
    #[arg(long, alias = "max-running-requests", value_name = "N")]
    pub max_num_seqs: Option<u64>,
    /// The most rows of a step that want logits at once; where more do, the head runs several times
    /// [default: as many as sequences].
    #[arg(long, value_name = "N")]
    pub max_num_rows: Option<u64>,
    /// The longest sequence, prompt and reply together [default: 4096, or the model's own limit
    /// where that is less].
    #[arg(long, aliases = ["max-model-len", "context-length"], value_name = "N")]
    pub max_seq_len: Option<u64>,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
}

/// How much memory a model may take.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// Bytes that the model may take, also with KiB, MiB or GiB; what weights and buffers leave is
    /// for the KV cache [default: room for every sequence at its longest].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory_budget: Option<u64>,
    /// The share of what is free on the device that the model may take, such as 0.9 [default: the KV pool
    /// of a GPU takes no more than the rest leaves of 0.9].
    #[arg(long, value_name = "SHARE")]
    pub memory_fraction: Option<f64>,
}

/// Where settings come from.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ConfigSource {
    /// The configuration, or settings as a JSON object; environment variables and flags override a file
    /// [default: piecewise.toml, if it is in the current directory].
    #[arg(long, value_name = "FILE|JSON")]
    pub config: Option<String>,
    /// Set a key of the configuration, those of tables with a dot; the value is TOML, JSON or text as it
    /// is. Repeat it for several.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Where settings come from, and those that mean the same to every command that compiles a model.
#[derive(Debug, clap::Args)]
pub(crate) struct SharedArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// Show every setting with where it came from, and stop.
    #[arg(long)]
    pub print_config: bool,
    /// Make every step that does not replay an error.
    #[arg(long)]
    pub strict: bool,
    /// Checks that run with every step: poison (NaN in float padding, dead bytes, page tails and
    /// free pages before it), addresses (those of each graph against the memory's, before each
    /// replay), compare (each step again, launched, and compared with its replay).
    #[arg(long, value_parser = ["poison", "addresses", "compare"], value_delimiter = ',', value_name = "CHECK,..")]
    pub check: Vec<String>,
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// A level, or none that compiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    Compiled(CompileLevel),
    /// The reference evaluator.
    Reference,
}

impl std::str::FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reference" => Ok(Self::Reference),
            text => text.parse().map(Self::Compiled),
        }
    }
}

impl Level {
    fn compiled(self) -> anyhow::Result<CompileLevel> {
        match self {
            Self::Compiled(level) => Ok(level),
            Self::Reference => bail!(
                "--level reference compiles nothing: `piecewise run` computes by the reference evaluator, \
                 and `piecewise bisect --against reference` holds what is compiled against it"
            ),
        }
    }
}

/// How a graph is compiled and run.
#[derive(Debug, clap::Args)]
pub(crate) struct CompileArgs {
    #[command(flatten)]
    pub shared: SharedArgs,
    /// The device to run on: cpu, cuda, cuda:N, or auto; to inspect or compile without a GPU
    /// also cuda:sm_90a and the like [default: cpu].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceSpec>,
    /// How far to compile: eager (unfused, op by op), trace (the whole pipeline and its checks,
    /// run unfused), compile (regions, launched) or piecewise (regions, captured and replayed), or
    /// 0 to 3 for them [default: piecewise].
    #[arg(long)]
    pub level: Option<Level>,
    /// Which CUDA graphs to capture: none, piecewise, full, full_decode_only or full_and_piecewise, or for
    /// decodes and mixed steps any two of none, piecewise and full, such as none_and_piecewise
    /// [default: full_and_piecewise].
    #[arg(long, alias = "cudagraph-mode", value_name = "MODE")]
    pub graph_mode: Option<GraphMode>,
    /// Capture nothing: the same as --graph-mode none.
    #[arg(long, alias = "disable-cuda-graph", conflicts_with = "graph_mode")]
    pub enforce_eager: bool,
    /// Layers to launch and never capture, by name: model.layers.3,model.layers.4.mlp.
    #[arg(long, value_name = "LAYER,..", value_delimiter = ',')]
    pub capture_exclude: Option<Vec<String>>,
    /// Measure at start for which steps padding loses, and send them another way.
    #[arg(long)]
    pub measure_padding: bool,
    /// Sizes in tokens for steps of exactly so many, compiled and measured for them alone.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub compile_sizes: Option<Vec<u64>>,
    /// Sizes in tokens whose steps are launched, not replayed.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub launched_sizes: Option<Vec<u64>>,
    /// Sizes in tokens that are captured by the first step that wants them, where the others are at
    /// start.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub lazy_sizes: Option<Vec<u64>>,
    /// What a failed capture does: error (no start), or launch (steps that the graph would have served
    /// are launched and counted) [default: launch, with --strict error].
    #[arg(long, value_parser = named::<OnCaptureFailure>, value_name = "WHAT")]
    pub on_capture_failure: Option<OnCaptureFailure>,
    /// Believe what ops declare about capture, without replaying them on made-up batches at start.
    #[arg(long)]
    pub no_probe_capture: bool,
    /// Failed captures in a row after which a graph is not tried again; 0 tries for ever
    /// [default: 3].
    #[arg(long, value_name = "N")]
    pub capture_attempts: Option<u32>,
    /// How often memory may move before graphs are no longer captured again for it, and steps are
    /// launched; 0 captures them for ever [default: 128].
    #[arg(long, value_name = "N")]
    pub recapture_limit: Option<u32>,
    /// What is done about a list of sizes that ends below its bound: warn (larger steps are launched) or
    /// extend (the bound becomes its last size) [default: warn].
    #[arg(long, value_parser = named::<ShortSizeLists>, value_name = "WHAT")]
    pub short_size_lists: Option<ShortSizeLists>,
    /// Sizes in tokens to capture: a list, or one number for the default pattern up to it.
    #[arg(long, value_name = "N,..")]
    pub capture_num_tokens: Option<Sizes>,
    /// Decode batches to capture: a list, or one number for the default pattern up to it.
    #[arg(long, alias = "cuda-graph-max-bs", value_name = "N,..")]
    pub decode_batch_sizes: Option<Sizes>,
    /// Tokens per sequence for which uniform batches get graphs of their own, such as 1,4 for a model
    /// that checks drafts of three [default: 1].
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub capture_query_lengths: Option<Vec<u64>>,
    /// When graphs are captured: startup (all of them while the model is built), lazy (each one by
    /// the first step that would replay it) or background (between steps) [default: startup].
    #[arg(long, value_parser = named::<CaptureWhen>, value_name = "WHEN")]
    pub capture: Option<CaptureWhen>,
    /// Passes to leave out, by name, such as fuse: what they would have made runs as it is, captured as
    /// anything else.
    #[arg(long, value_name = "PASS,..", value_delimiter = ',')]
    pub passes_off: Option<Vec<String>>,
    /// Ops to split at: a list of names; an empty string never splits.
    #[arg(long, value_name = "OP,..")]
    pub splitting_ops: Option<String>,
    /// Run every step at its exact count or launched, never padded.
    #[arg(long)]
    pub no_padding: bool,
    /// How the ways to compute parts of a step and a library's algorithms are chosen: off (what is
    /// expected to be fastest, and nothing else is compiled), load (what the cache remembers) or
    /// measure (what it remembers, and else what is measured at start; what serves loads)
    /// [default: load].
    #[arg(long, value_parser = named::<TuneMode>, value_name = "MODE")]
    pub tune: Option<TuneMode>,
    /// Seconds that measuring may take; who measures next goes on with the rest [default: 20 at a
    /// start, no limit of `tune`].
    #[arg(long, value_name = "N")]
    pub tune_seconds: Option<u64>,
    /// Compute products in one way at all sizes, so that a row has the same bits in any company, at
    /// some cost where steps are small [default: false, of encoders true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub batch_invariant: Option<bool>,
    /// Compute every prompt whole: none begins with keys and values that others computed.
    #[arg(long, aliases = ["no-enable-prefix-caching", "disable-radix-cache"])]
    pub no_prefix_cache: bool,
    /// Let requests ask for min_p, penalties, biases of logits, masks of ids and log-probabilities
    /// [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub sampling_controls: Option<bool>,
    /// Name steps and their parts for a profiler that listens to NVTX, such as Nsight Systems.
    #[arg(long)]
    pub nvtx: bool,
    #[command(flatten)]
    pub cuda: CudaArgs,
    /// Log a line about the steps every so many seconds: hit rate, padding, what runs and waits; 0 logs
    /// none [default: of what serves requests 10].
    #[arg(long, value_name = "SECONDS")]
    pub stats_interval: Option<u64>,
}

impl BoundArgs {
    /// The file and the flags.
    pub(crate) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        let layers = self.compile.layers()?;
        let layers = put(layers, "dtype", self.dtype)?;
        let layers = put(layers, "quantize", self.quantize)?;
        let layers = put(layers, "max_num_tokens", self.max_num_tokens)?;
        let layers = put(layers, "max_num_seqs", self.max_num_seqs)?;
        let layers = put(layers, "max_num_rows", self.max_num_rows)?;
        let layers = put(layers, "max_seq_len", self.max_seq_len)?;
        self.memory.over(layers)
    }
}

impl MemoryArgs {
    /// The flags on top of a configuration.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let layers = put(layers, "memory_budget", self.memory_budget)?;
        put(layers, "memory_fraction", self.memory_fraction)
    }
}

impl SharedArgs {
    /// The file and the flags.
    pub(crate) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        let layers = self.source.layers()?;
        let mut layers = turn_on(layers, "strict", self.strict)?;
        for check in &self.check {
            layers = layers.flag(&format!("checks.{check}"), true, "--check")?;
        }
        self.cache.over(layers)
    }
}

impl CompileArgs {
    /// Whether the reference evaluator is asked for, in the place of a level; it is no setting then.
    pub(crate) fn takes_reference(&mut self) -> bool {
        self.level.take_if(|level| *level == Level::Reference).is_some()
    }

    /// The file and the flags.
    pub(crate) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        let layers = self.shared.layers()?;
        let layers = put(layers, "device", self.device.map(|d| d.to_string()))?;
        let layers = put(layers, "level", self.level.map(Level::compiled).transpose()?)?;
        let layers = put(layers, "graph_mode", self.graph_mode)?;
        let eager = self.enforce_eager.then_some(GraphMode::None);
        let layers = put_by(layers, "--enforce-eager", "graph_mode", eager)?;
        let layers = turn_off(layers, "probe_capture", self.no_probe_capture)?;
        let layers = turn_on(layers, "measure_padding", self.measure_padding)?;
        let layers = put(layers, "compile_sizes", self.compile_sizes.as_ref())?;
        let layers = put(layers, "launched_sizes", self.launched_sizes.as_ref())?;
        let layers = put(layers, "lazy_sizes", self.lazy_sizes.as_ref())?;
        let layers = put(layers, "on_capture_failure", self.on_capture_failure)?;
        let layers = put(layers, "capture_exclude", self.capture_exclude.as_ref())?;
        let layers = put(layers, "capture_attempts", self.capture_attempts)?;
        let layers = put(layers, "recapture_limit", self.recapture_limit)?;
        let layers = put(layers, "short_size_lists", self.short_size_lists)?;
        let layers = put(layers, "capture_num_tokens", self.capture_num_tokens.as_ref())?;
        let layers = put(layers, "decode_batch_sizes", self.decode_batch_sizes.as_ref())?;
        let layers = put(layers, "capture_query_lengths", self.capture_query_lengths.as_ref())?;
        let layers = put(layers, "capture", self.capture)?;
        let layers = put(layers, "passes_off", self.passes_off.as_ref())?;
        let layers = put(layers, "splitting_ops", self.splitting_ops.as_deref().map(op_names))?;
        let layers = turn_off(layers, "padding", self.no_padding)?;
        let layers = put(layers, "tune", self.tune)?;
        let layers = put(layers, "tune_seconds", self.tune_seconds)?;
        let layers = turn_off(layers, "prefix_cache", self.no_prefix_cache)?;
        let layers = put(layers, "sampling_controls", self.sampling_controls)?;
        let layers = turn_on(layers, "nvtx", self.nvtx)?;
        let layers = self.cuda.over(layers)?;
        let interval = self.stats_interval;
        let layers = put_by(layers, "--stats-interval", "stats_interval_seconds", interval)?;
        put(layers, "batch_invariant", self.batch_invariant)
    }
}

impl ConfigSource {
    /// The file, that of the current directory where no other is named, the environment, and what flags
    /// set by keys.
    pub(crate) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        let named = self.config.as_deref();
        let json = named.filter(|text| text.trim_start().starts_with('{'));
        let usual = Some(Path::new(CONFIG_FILE)).filter(|file| file.exists());
        let mut layers = match named.filter(|_| json.is_none()).map(Path::new).or(usual) {
            Some(file) => ConfigLayers::new().read(file)?,
            None => ConfigLayers::new(),
        };
        let variables = std::env::vars_os();
        let variables: Vec<(String, String)> = variables
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect();
        layers = layers.environment(variables)?;
        if let Some(json) = json {
            layers = layers.json(json, "--config")?;
        }
        self.set.iter().try_fold(layers, |layers, text| Ok(layers.assignment(text, SET)?))
    }
}

fn op_names(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).filter(|op| !op.is_empty()).collect()
}
