//! The flags of `piecewise bench`.

use super::super::dumps::DumpArgs;
use super::super::model_args::{MemoryArgs, SharedArgs};
use super::super::named::{float, named};
use super::encoder::EncoderBenchArgs;
use super::graph::GraphBenchArgs;
use super::launches::LaunchPattern;
use super::serve::ServeBenchArgs;
use super::workload::{DecodeBatch, Prompts};
use piecewise::device::DeviceSpec;
use piecewise::models::Preset;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::dtype::DType;
use piecewise_runtime::words::{CompileLevel, GraphMode, Quantize};
use std::path::PathBuf;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise bench --preset qwen3-0.6b --device cuda
  piecewise bench --preset qwen3-8b --device cuda --batch 1,8 --context 512 --mixed 300,512
  piecewise bench --model examples/tiny-qwen3 --batch 1,4 --context 64 --mixed 24,32 --steps 20
  piecewise bench --preset qwen3-8b --device cuda --prefill 512,2048,4x512,3x512+64
  piecewise bench --preset qwen3-8b --device cuda --batch 8,8x4
  piecewise bench --preset qwen3-8b --device cuda --batch 1 --without 'attention_*,region'
  piecewise bench --preset qwen3-8b --device cuda --batch 1 --timeline step.pftrace
  piecewise bench --preset qwen3-0.6b --device cuda --level eager
  piecewise bench --preset qwen3-8b --device cuda --startup
  piecewise bench --preset qwen3-8b --device cuda --startup --cache-dir cache
  piecewise bench --preset qwen3-8b --device cuda --costs costs.jsonl --mixed-steps 30
  piecewise bench --model DIR --config serving.toml --memory-budget 20GiB

Settings come from the configuration and these flags, with the defaults of any other command, so that
what `piecewise compile` made is found. The rows choose the rest: larger bounds where they need
them, the decode batches and their query lengths, and graphs are captured when their mode is
measured. With --startup, unless a setting of the cache says otherwise, everything is compiled and
nothing is kept.

Exit status: 0 every row is good, 1 a row failed or nothing could be measured.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[group(id = "measured", required = true, multiple = false, args = ["model", "preset"])]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(super) command: Option<BenchCommand>,
    /// The shapes of a published model, with random weights made on the device: qwen3-0.6b,
    /// llama-3.2-1b, qwen3-8b, llama-3.1-8b or qwen3-30b-a3b.
    #[arg(long, value_name = "NAME")]
    pub(super) preset: Option<Preset>,
    /// A Hugging Face model folder with its weights, or a model of the hub by its name.
    #[arg(short, long, value_name = "DIR|NAME")]
    pub(super) model: Option<PathBuf>,
    /// The device: cpu, cuda, cuda:N, or auto [default: cpu].
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<DeviceSpec>,
    /// The dtype of activations and of the KV cache, of a preset's weights too: f32, bf16 or f16;
    /// the model's own by default.
    #[arg(long, value_parser = float)]
    pub(super) dtype: Option<DType>,
    /// Round linear layers to fp8 or int4 when they are loaded; of a preset they are random codes and
    /// scales [default: none].
    #[arg(long, value_parser = named::<Quantize>, value_name = "FORMAT")]
    pub(super) quantize: Option<Quantize>,
    /// Decode batches, in sequences; NxM are N sequences of M tokens each, all of which are sampled
    /// from [default: 1,2,4,8; none with --prefill].
    #[arg(long, value_name = "N|NxM,..", value_delimiter = ',')]
    pub(super) batch: Vec<DecodeBatch>,
    /// Mean contexts of the decode batches; those of the sequences of a batch differ around it.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [512])]
    pub(super) context: Vec<u64>,
    /// Mixed batches of prompts and decodes, by their tokens; off-size counts run padded. None
    /// by default; with --costs the powers of two up to 2048.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(super) mixed: Vec<u64>,
    /// Prompts from their start: N is one prompt of N tokens, NxM are N prompts of M tokens each, and
    /// +D behind either has D sequences beside them that decode.
    #[arg(long, value_name = "N|NxM|NxM+D,..", value_delimiter = ',')]
    pub(super) prefill: Vec<Prompts>,
    /// The most tokens of a step [default: 512, or what the rows bring].
    #[arg(long, value_name = "N")]
    pub(super) max_num_tokens: Option<u64>,
    /// The most sequences of a step [default: 64, or what the rows bring].
    #[arg(long, value_name = "N")]
    pub(super) max_num_seqs: Option<u64>,
    /// The most positions that a sequence may come to, which block tables are as wide as [default:
    /// 4096, the model's own limit where that is less, or what the rows come to].
    #[arg(long, value_name = "N")]
    pub(super) max_seq_len: Option<u64>,
    /// Sizes in tokens to capture; by default the batches and, for each mixed batch and each
    /// --prefill, the size of an engine's default list that holds it.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(super) capture_num_tokens: Vec<u64>,
    /// Sample by the kernels with penalties, biases and masks, of which nobody asks for any
    /// [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(super) sampling_controls: Option<bool>,
    /// Which modes to measure: none (launched, one by one), piecewise (pieces replayed, split ops
    /// launched between them), full (one replay), full_decode_only and full_and_piecewise, which do
    /// one for decodes and the other for the rest [default: none,piecewise,full; full with --without
    /// or --timeline, and what the configuration says where it does].
    #[arg(long, value_name = "MODE,..", value_delimiter = ',')]
    pub(super) graph_mode: Vec<GraphMode>,
    /// How far the model is compiled: eager (op by op), trace, compile (fused, launched) or piecewise;
    /// below piecewise every step is launched [default: piecewise].
    #[arg(
        long,
        conflicts_with_all = ["graph_mode", "startup", "timeline"]
    )]
    pub(super) level: Option<CompileLevel>,
    /// Measure, once the graphs of a mode are captured, for which steps padding loses, and run those the
    /// other way: at their own size, or in pieces.
    #[arg(long, conflicts_with_all = ["costs", "startup", "timeline"])]
    pub(super) measure_padding: bool,
    /// Timed steps of a decode row.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) steps: u64,
    /// Timed steps of a mixed or prefill row [default: a fifth of --steps, at least 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) mixed_steps: Option<u64>,
    /// Untimed steps before those of a row [default: a fifth of them, at least 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(super) warmup: Option<u64>,
    /// How the ways to compute parts of a step and a library's algorithms are chosen: off (what is
    /// expected to be fastest), load (what --cache-dir remembers) or measure (before the rows)
    /// [default: load, off with --startup].
    #[arg(long, value_parser = named::<TuneMode>, value_name = "MODE")]
    pub(super) tune: Option<TuneMode>,
    /// Seconds that measuring may take [default: 60].
    #[arg(long, value_name = "N")]
    pub(super) tune_seconds: Option<u64>,
    /// Measure a start alone: 14 token sizes in pieces and 8 decode batches whole.
    #[arg(long, conflicts_with = "costs")]
    pub(super) startup: bool,
    /// Leave out the launches of these kernels, to see what the rest takes. The steps then compute
    /// something else: their results are not held against anything. `*` stands for any letters,
    /// and `NAME@PART` takes only launches whose module path contains PART. --launches lists both.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with_all = ["costs", "startup"])]
    pub(super) without: Vec<LaunchPattern>,
    /// List the kernels of each row's step, with how many launches and which module paths.
    #[arg(long, conflicts_with = "startup")]
    pub(super) launches: bool,
    /// Write where and when each block of a step ran, as a trace that Perfetto opens
    /// (ui.perfetto.dev), and print a summary of each launch. It takes one row in mode full on a
    /// CUDA device, whose kernels are compiled to note it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["costs", "startup"])]
    pub(super) timeline: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Write the measured cost of a step at each size, for `piecewise plan --costs`.
    #[arg(long, value_name = "FILE")]
    pub(super) costs: Option<PathBuf>,
    #[command(flatten)]
    pub(super) shared: SharedArgs,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    pub(super) dumps: DumpArgs,
}

/// What is measured beside steps.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    Serve(Box<ServeBenchArgs>),
    Graph(Box<GraphBenchArgs>),
    Encoder(Box<EncoderBenchArgs>),
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

    /// Decodes of 1, 2, 4 and 8 sequences where neither they nor prompts are asked for.
    pub(super) fn batches(&self) -> Vec<DecodeBatch> {
        match self.batch.is_empty() && self.prefill.is_empty() {
            true => [1, 2, 4, 8].map(|sequences| DecodeBatch { sequences, query_length: 1 }).into(),
            false => self.batch.clone(),
        }
    }

    /// Totals of the mixed batches.
    pub(super) fn mixed_totals(&self) -> Vec<u64> {
        match (self.mixed.is_empty(), &self.costs) {
            (true, Some(_)) => (0..=11).map(|power| 1 << power).collect(),
            _ => self.mixed.clone(),
        }
    }
}
