//! Flags of every command that compiles a model, and the layers of configuration that they make.

use super::amounts::parse_bytes;
use super::cache_flags::CacheFlags;
use anyhow::Context;
use clap::ValueEnum;
use piecewise::device::DeviceSpec;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigLayers, Sizes};
use piecewise_runtime::mode::{GraphMode, Level};
use piecewise_runtime::model::CaptureWhen;
use std::path::{Path, PathBuf};

/// The file that is read from the current directory where no other is named.
const CONFIG_FILE: &str = "piecewise.toml";

/// Where a model comes from, and what it is made for.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// A Hugging Face model folder.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    #[command(flatten)]
    pub bounds: BoundArgs,
}

/// What a model is made for.
#[derive(Debug, clap::Args)]
pub(crate) struct BoundArgs {
    /// The dtype of activations and of the KV cache; the checkpoint's own by default.
    #[arg(long, value_enum)]
    pub dtype: Option<DTypeArg>,
    /// The most tokens of a step; longer prompts are cut into chunks [default: 512].
    #[arg(long, value_name = "N")]
    pub max_num_tokens: Option<u64>,
    /// The most sequences of a step [default: as many as there are prompts, at most 64].
    #[arg(long, value_name = "N")]
    pub max_num_seqs: Option<u64>,
    /// The longest sequence, prompt and reply together [default: 4096, or the model's own limit
    /// where that is less].
    #[arg(long, value_name = "N")]
    pub max_seq_len: Option<u64>,
    /// Bytes that the model may take, also with KiB, MiB or GiB; what weights and buffers leave is
    /// for the KV cache [default: room for every sequence at its longest].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory_budget: Option<u64>,
    #[command(flatten)]
    pub compile: CompileArgs,
}

/// How a graph is compiled and run.
#[derive(Debug, clap::Args)]
pub(crate) struct CompileArgs {
    /// The configuration; flags override it [default: piecewise.toml, if it is in the current
    /// directory].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show every setting with where it came from, and stop.
    #[arg(long)]
    pub print_config: bool,
    /// The device to run on: cpu, cuda, cuda:N, or auto; to inspect or compile without a GPU
    /// also cuda:sm_90a and the like [default: cpu].
    #[arg(long, visible_alias = "target", value_name = "DEVICE")]
    pub device: Option<DeviceSpec>,
    /// How far to compile [default: piecewise].
    #[arg(long, value_enum)]
    pub level: Option<LevelArg>,
    /// Which graphs to capture: none, piecewise, full, full_decode_only or full_and_piecewise
    /// [default: full_and_piecewise].
    #[arg(long, value_name = "MODE")]
    pub graph_mode: Option<GraphMode>,
    /// Capture nothing: the same as --graph-mode none.
    #[arg(long, conflicts_with = "graph_mode")]
    pub enforce_eager: bool,
    /// Layers to launch and never capture, by name: model.layers.3,model.layers.4.mlp.
    #[arg(long, value_name = "LAYER,..", value_delimiter = ',')]
    pub capture_exclude: Option<Vec<String>>,
    /// Believe what ops declare about capture, without replaying them on made-up batches at start.
    #[arg(long)]
    pub no_probe_capture: bool,
    /// Failed captures in a row after which a graph is not tried again; 0 tries for ever
    /// [default: 3].
    #[arg(long, value_name = "N")]
    pub capture_attempts: Option<u32>,
    /// Sizes in tokens to capture: a list, or one number for the default pattern up to it.
    #[arg(long, value_name = "N,..")]
    pub capture_num_tokens: Option<Sizes>,
    /// Decode batches to capture: a list, or one number for the default pattern up to it.
    #[arg(long, value_name = "N,..")]
    pub decode_batch_sizes: Option<Sizes>,
    /// Tokens per sequence for which uniform batches get graphs of their own, such as 1,4 for a model
    /// that checks drafts of three [default: 1].
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub capture_query_lengths: Option<Vec<u64>>,
    /// When graphs are captured [default: startup].
    #[arg(long, value_enum, value_name = "WHEN")]
    pub capture: Option<CaptureArg>,
    /// Ops to split at: a list of names; an empty string never splits.
    #[arg(long, value_name = "OP,..")]
    pub splitting_ops: Option<String>,
    /// Run every step at its exact count or launched, never padded.
    #[arg(long)]
    pub no_padding: bool,
    /// How alternatives and library algorithms are chosen [default: load].
    #[arg(long, value_enum, value_name = "MODE")]
    pub tune: Option<TuneArg>,
    /// Make every step that does not replay an error.
    #[arg(long)]
    pub strict: bool,
    /// Checks that run with every step: poison, addresses, compare.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CHECK,..")]
    pub check: Vec<CheckArg>,
    #[command(flatten)]
    pub cache: CacheFlags,
}

impl BoundArgs {
    /// The file and the flags.
    pub(crate) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        let mut layers = self.compile.layers()?;
        layers = put(layers, "--dtype", self.dtype.map(DType::from))?;
        layers = put(layers, "--max-num-tokens", self.max_num_tokens)?;
        layers = put(layers, "--max-num-seqs", self.max_num_seqs)?;
        layers = put(layers, "--max-seq-len", self.max_seq_len)?;
        put(layers, "--memory-budget", self.memory_budget)
    }
}

impl CompileArgs {
    /// The file and the flags.
    pub(crate) fn layers(&self) -> anyhow::Result<ConfigLayers> {
        let mut layers = file_layers(self.config.as_deref())?;
        if let Some(device) = self.device {
            layers = layers.flag("target", device.to_string(), "--device")?;
        }
        layers = put(layers, "--level", self.level.map(Level::from))?;
        layers = put(layers, "--graph-mode", self.graph_mode)?;
        if self.enforce_eager {
            layers = layers.flag("graph_mode", GraphMode::None.name(), "--enforce-eager")?;
        }
        if self.no_probe_capture {
            layers = layers.flag("probe_capture", false, "--no-probe-capture")?;
        }
        layers = put(layers, "--capture-exclude", self.capture_exclude.as_ref())?;
        layers = put(layers, "--capture-attempts", self.capture_attempts)?;
        layers = put(layers, "--capture-num-tokens", self.capture_num_tokens.as_ref())?;
        layers = put(layers, "--decode-batch-sizes", self.decode_batch_sizes.as_ref())?;
        layers = put(layers, "--capture-query-lengths", self.capture_query_lengths.as_ref())?;
        layers = put(layers, "--capture", self.capture.map(CaptureWhen::from))?;
        layers = put(layers, "--splitting-ops", self.splitting_ops.as_deref().map(op_names))?;
        if self.no_padding {
            layers = layers.flag("padding", false, "--no-padding")?;
        }
        layers = put(layers, "--tune", self.tune.map(TuneMode::from))?;
        layers = put(layers, "--strict", self.strict.then_some(true))?;
        for check in &self.check {
            layers = layers.flag(check.key(), true, "--check")?;
        }
        self.cache.over(layers)
    }
}

/// The configuration file: `named`, else that of the current directory if it is there.
pub(crate) fn file_layers(named: Option<&Path>) -> anyhow::Result<ConfigLayers> {
    match named {
        Some(file) => Ok(ConfigLayers::new().read(file)?),
        None if Path::new(CONFIG_FILE).exists() => {
            Ok(ConfigLayers::new().read(Path::new(CONFIG_FILE))?)
        }
        None => Ok(ConfigLayers::new()),
    }
}

/// Sets the key that a flag is named after, if the flag was given.
fn put(
    layers: ConfigLayers,
    flag: &str,
    value: Option<impl serde::Serialize>,
) -> anyhow::Result<ConfigLayers> {
    let Some(value) = value else { return Ok(layers) };
    let value = toml::Value::try_from(value).with_context(|| format!("{flag} is out of range"))?;
    let key = flag.trim_start_matches('-').replace('-', "_");
    Ok(layers.flag(&key, value, flag)?)
}

fn op_names(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).filter(|op| !op.is_empty()).collect()
}

/// `--dtype`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DTypeArg {
    /// IEEE single precision.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl From<DTypeArg> for DType {
    fn from(arg: DTypeArg) -> Self {
        match arg {
            DTypeArg::F32 => Self::F32,
            DTypeArg::Bf16 => Self::BF16,
            DTypeArg::F16 => Self::F16,
        }
    }
}

/// `--level`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LevelArg {
    /// Unfused, op by op.
    Eager,
    /// The whole pipeline and its checks, run unfused.
    Trace,
    /// Regions, launched.
    Compile,
    /// Regions, captured and replayed.
    Piecewise,
}

impl From<LevelArg> for Level {
    fn from(arg: LevelArg) -> Self {
        match arg {
            LevelArg::Eager => Self::Eager,
            LevelArg::Trace => Self::Trace,
            LevelArg::Compile => Self::Compile,
            LevelArg::Piecewise => Self::Piecewise,
        }
    }
}

/// `--capture`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum CaptureArg {
    /// All of them while the model is built.
    Startup,
    /// Each one by the first step that would replay it.
    Lazy,
}

impl From<CaptureArg> for CaptureWhen {
    fn from(arg: CaptureArg) -> Self {
        match arg {
            CaptureArg::Startup => Self::Startup,
            CaptureArg::Lazy => Self::Lazy,
        }
    }
}

/// `--tune`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TuneArg {
    /// The first alternative, and the algorithms that the library would take.
    Off,
    /// What the cache remembers.
    Load,
    /// What the cache remembers, and else what is measured.
    Measure,
}

impl From<TuneArg> for TuneMode {
    fn from(arg: TuneArg) -> Self {
        match arg {
            TuneArg::Off => Self::Off,
            TuneArg::Load => Self::Load,
            TuneArg::Measure => Self::Measure,
        }
    }
}

/// `--check`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum CheckArg {
    /// NaN in float padding, dead bytes, page tails and free pages before each step.
    Poison,
    /// The addresses of each graph against the memory's, before each replay.
    Addresses,
    /// Each step again, launched, and compared with its replay.
    Compare,
}

impl CheckArg {
    fn key(self) -> &'static str {
        match self {
            Self::Poison => "checks.poison",
            Self::Addresses => "checks.addresses",
            Self::Compare => "checks.compare",
        }
    }
}
