//! Flags of every command that compiles a model.

use super::device::DeviceArg;
use clap::ValueEnum;
use piecewise_ir::dtype::DType;
use piecewise_runtime::mode::{GraphMode, Level};
use std::path::PathBuf;

/// Where a model comes from and what it is made for.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// A Hugging Face model folder.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The dtype of activations and of the KV cache; the checkpoint's own by default.
    #[arg(long, value_enum)]
    pub dtype: Option<DTypeArg>,
    /// The most tokens of a step; longer prompts are cut.
    #[arg(long, default_value_t = 512)]
    pub max_num_tokens: u64,
    /// The most sequences of a step.
    #[arg(long, default_value_t = 16)]
    pub max_num_seqs: u64,
    /// The longest sequence, prompt and reply together; the model's own limit by default.
    #[arg(long)]
    pub max_seq_len: Option<u64>,
    #[command(flatten)]
    pub compile: CompileArgs,
}

/// How a graph is compiled and run.
#[derive(Debug, clap::Args)]
pub(crate) struct CompileArgs {
    /// The device to run on: cpu, cuda, cuda:N, or auto; to inspect also cuda:sm_90 and the like.
    #[arg(long, default_value_t = DeviceArg::Cpu, value_name = "DEVICE")]
    pub device: DeviceArg,
    /// How far to compile.
    #[arg(long, value_enum, default_value_t = LevelArg::Piecewise)]
    pub level: LevelArg,
    /// Which graphs to capture: none, piecewise, full, full_decode_only or full_and_piecewise.
    #[arg(long, default_value = "full_and_piecewise", value_name = "MODE")]
    pub graph_mode: GraphMode,
    /// Sizes in tokens to capture: a list, or one number for the default pattern up to it.
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    pub capture_num_tokens: Option<Vec<u64>>,
    /// Decode batches to capture: a list, or one number for the default pattern up to it.
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    pub decode_batch_sizes: Option<Vec<u64>>,
    /// Ops to split at: a list of names; an empty string never splits.
    #[arg(long, value_name = "OP,..")]
    pub splitting_ops: Option<String>,
    /// Run every step at its exact count or launched, never padded.
    #[arg(long)]
    pub no_padding: bool,
    /// Make every step that does not replay an error.
    #[arg(long)]
    pub strict: bool,
    /// Checks that run with every step: poison, addresses, compare.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CHECK,..")]
    pub check: Vec<CheckArg>,
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
