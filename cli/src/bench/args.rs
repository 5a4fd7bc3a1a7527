//! The flags of `piecewise bench`.

use super::super::model_args::DTypeArg;
use clap::ValueEnum;
use piecewise::device::DeviceSpec;
use piecewise::models::Preset;
use piecewise_runtime::mode::GraphMode;
use std::path::PathBuf;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise bench --preset qwen3-0.6b --device cuda
  piecewise bench --preset qwen3-8b --device cuda --batch 1,8 --context 512 --mixed 300,512
  piecewise bench --model examples/tiny-qwen3 --batch 1,4 --context 64 --mixed 24,32 --steps 20
  piecewise bench --preset qwen3-8b --device cuda --startup
  piecewise bench --preset qwen3-8b --device cuda --startup --cache-dir cache
  piecewise bench --preset qwen3-8b --device cuda --costs costs.jsonl --mixed-steps 30

Exit status: 0 every row is good, 1 a row failed or nothing could be measured.")]
pub(crate) struct BenchArgs {
    /// The shapes of a published model, with random weights made on the device: qwen3-0.6b,
    /// llama-3.2-1b, qwen3-8b or llama-3.1-8b.
    #[arg(long, value_name = "NAME", required_unless_present = "model")]
    pub(super) preset: Option<Preset>,
    /// A Hugging Face model folder with its weights.
    #[arg(long, value_name = "DIR", conflicts_with = "preset")]
    pub(super) model: Option<PathBuf>,
    /// The device: cpu, cuda, cuda:N, or auto.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: DeviceSpec,
    /// The dtype of activations and of the KV cache, of a preset's weights too; the model's own
    /// by default.
    #[arg(long, value_enum)]
    pub(super) dtype: Option<DTypeArg>,
    /// Decode batches, in sequences.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    pub(super) batch: Vec<u64>,
    /// Mean contexts of the decode batches; those of the sequences of a batch differ around it.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [512])]
    pub(super) context: Vec<u64>,
    /// Mixed batches of prompts and decodes, by their tokens; off-size counts run padded. None if
    /// empty; with --costs the powers of two up to 2048 by default.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(super) mixed: Vec<u64>,
    /// Sizes in tokens to capture; by default the batches and, for each mixed batch, the power of
    /// two that holds it.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(super) capture_num_tokens: Vec<u64>,
    /// Which modes to measure.
    #[arg(
        long,
        value_enum,
        value_name = "MODE,..",
        value_delimiter = ',',
        default_values_t = [ModeArg::None, ModeArg::Piecewise, ModeArg::Full]
    )]
    pub(super) graph_mode: Vec<ModeArg>,
    /// Timed steps of a decode row.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) steps: u64,
    /// Timed steps of a mixed row [default: a fifth of --steps, at least 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) mixed_steps: Option<u64>,
    /// Untimed steps before those of a row [default: a fifth of them, at least 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(super) warmup: Option<u64>,
    /// Take the first alternative of each kernel and the matmul algorithms that the library would,
    /// unmeasured.
    #[arg(long)]
    pub(super) no_tune: bool,
    /// Measure a start alone: 14 token sizes in pieces and 8 decode batches whole.
    #[arg(long, conflicts_with = "costs")]
    pub(super) startup: bool,
    /// Take compiled pieces from this folder, and keep new ones there: a second start is warm. By
    /// default everything is compiled and nothing is kept.
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Write the measured cost of a step at each size, for `piecewise plan --costs`.
    #[arg(long, value_name = "FILE")]
    pub(super) costs: Option<PathBuf>,
}

/// `--graph-mode`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum ModeArg {
    /// Launched, one by one.
    None,
    /// Pieces replayed, split ops launched between them.
    Piecewise,
    /// One replay.
    Full,
}

impl ModeArg {
    pub(super) fn graph_mode(self) -> GraphMode {
        match self {
            Self::None => GraphMode::None,
            Self::Piecewise => GraphMode::Piecewise,
            Self::Full => GraphMode::Full,
        }
    }
}

impl std::fmt::Display for ModeArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.graph_mode().name())
    }
}

impl BenchArgs {
    /// Timed steps of a mixed row.
    pub(super) fn mixed_steps(&self) -> u64 {
        self.mixed_steps.unwrap_or((self.steps / 5).max(5))
    }

    /// Untimed steps before `steps` timed ones.
    pub(super) fn warmup(&self, steps: u64) -> u64 {
        self.warmup.unwrap_or((steps / 5).max(3))
    }

    /// Totals of the mixed batches.
    pub(super) fn mixed_totals(&self) -> Vec<u64> {
        match (self.mixed.is_empty(), &self.costs) {
            (true, Some(_)) => (0..=11).map(|power| 1 << power).collect(),
            _ => self.mixed.clone(),
        }
    }
}
