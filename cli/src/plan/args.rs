//! The flags of `piecewise plan`.

use std::path::PathBuf;

use super::super::amounts::parse_bytes;
use super::super::named::named;
use clap::{Args, ValueEnum};
use piecewise_planner::{GraphMode, Lengths, Objective, TrafficShape};

const EXAMPLES: &str = "\
Examples:
  Choose sizes from a log, as many as pay off:
    piecewise plan --log iterations.jsonl --max-num-tokens 8192 --max-num-seqs 256

  At most 24 graphs, least padding, for a script:
    piecewise plan --log iterations.jsonl --max-graphs 24 --objective padding --json

  With measured costs, within 512 MiB of graph memory and 10 s of capture:
    piecewise plan --log iterations.jsonl --costs costs.jsonl --memory-budget 512MiB --capture-budget 10

  What is wrong with a configuration (exit status 3 if fewer than 95 % of the steps replay):
    piecewise plan --log iterations.jsonl --check piecewise.toml --require-coverage 95

  Before there is traffic, with pictures:
    piecewise plan --simulate chat --rate 20 --seed 7 --pictures plan/

  Before there is any idea of the traffic: the least worst-case padding for 32 graphs:
    piecewise plan --max-graphs 32 --max-num-tokens 8192 --max-num-seqs 256

A log is JSON lines as written by --iteration-log, TensorRT-LLM iteration statistics
(numCtxTokens, numGenRequests), or a CSV histogram (tokens,steps[,kind[,query_length]]).
Exit status: 0 done, 1 error, 2 wrong usage, 3 coverage below --require-coverage.";

/// Choose capture sizes from an iteration log, from simulated traffic, or for a bound.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Iteration log or histogram to plan for; `-` reads standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "simulate")]
    pub(super) log: Option<PathBuf>,

    /// Check the sizes of this configuration against the log instead of planning.
    #[arg(long, value_name = "CONFIG")]
    pub(super) check: Option<PathBuf>,

    /// What to minimise: time (the expected time of the log's steps) or padding (their padding
    /// tokens).
    #[arg(long, value_parser = named::<Objective>, default_value = "time")]
    pub(super) objective: Objective,

    /// The most graphs over both lists; the knee of the trade-off curve if absent.
    #[arg(long, value_name = "K")]
    pub(super) max_graphs: Option<usize>,

    /// The scheduler's limit of tokens in a step; the largest in the log if absent.
    #[arg(long, value_name = "N")]
    pub(super) max_num_tokens: Option<u32>,

    /// The scheduler's limit of sequences in a step; the largest in the log if absent.
    #[arg(long, value_name = "N")]
    pub(super) max_num_seqs: Option<u32>,

    /// Which steps may replay which graphs: piecewise (all steps pieces of a token size), full (all
    /// steps one graph), full_decode_only (decodes one graph, mixed steps are launched) or
    /// full_and_piecewise (decodes one graph, mixed steps pieces of a token size).
    #[arg(long, value_name = "MODE", default_value = "full_and_piecewise")]
    pub(super) graph_mode: GraphMode,

    /// Whether a step may run launched where that is cheaper than replaying: by default only with
    /// measured costs of launched steps, under objective `time`.
    #[arg(long, value_enum)]
    pub(super) launched: Option<LaunchedArg>,

    /// Let the largest token size end below the maximum; larger steps run launched.
    #[arg(long)]
    pub(super) leave_tail: bool,

    /// Every size but the maximum is a multiple of this.
    #[arg(long, value_name = "M", default_value_t = 1)]
    pub(super) multiple_of: u32,

    /// The most memory that the graphs may keep, in bytes or with KiB, MiB, GiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(super) memory_budget: Option<u64>,

    /// The most seconds that capturing may take.
    #[arg(long, value_name = "SECONDS")]
    pub(super) capture_budget: Option<f64>,

    /// What a GiB of graphs must save, per step: microseconds (time) or padding tokens (padding).
    #[arg(long, value_name = "PRICE", default_value_t = 0.0)]
    pub(super) memory_price: f64,

    /// What a second of capture must save, in the same unit.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0)]
    pub(super) capture_price: f64,

    /// Measured costs, as written by `bench --costs`; modelled if absent.
    #[arg(long, value_name = "FILE")]
    pub(super) costs: Option<PathBuf>,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Exit with status 3 when a smaller share of the steps replays.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(super) require_coverage: Option<f64>,

    /// Fail when more of the log's lines are malformed.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub(super) max_malformed: f64,

    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,

    /// Write histogram.svg and tradeoff.svg to this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) pictures: Option<PathBuf>,

    /// Colours of the pictures; `auto` follows the viewer's preference.
    #[arg(long, value_enum, default_value = "auto")]
    pub(super) theme: Theme,

    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
}

/// Figures of the modelled costs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Modelled costs (without --costs)")]
pub(super) struct ModelArgs {
    /// Parameters of the model.
    #[arg(long, value_name = "N", conflicts_with = "costs")]
    pub(super) parameters: Option<f64>,

    /// Bytes of one parameter.
    #[arg(long, value_name = "BYTES", conflicts_with = "costs")]
    pub(super) bytes_per_parameter: Option<f64>,

    /// Layers of the model.
    #[arg(long, value_name = "N", conflicts_with = "costs")]
    pub(super) layers: Option<u32>,

    /// Memory bandwidth in bytes per second.
    #[arg(long, value_name = "B/S", conflicts_with = "costs")]
    pub(super) bandwidth: Option<f64>,

    /// Matmul operations per second, as reached.
    #[arg(long, value_name = "FLOP/S", conflicts_with = "costs")]
    pub(super) flops: Option<f64>,
}

/// Generated traffic.
#[derive(Debug, Args)]
#[command(next_help_heading = "Simulated traffic")]
pub(super) struct SimulationArgs {
    /// Plan for generated traffic of this shape: chat (short prompts, medium answers, a steady
    /// stream of users), retrieval (long prompts with retrieved context, short answers) or batch
    /// (everything is there at the start).
    #[arg(long, value_parser = named::<TrafficShape>, value_name = "SHAPE")]
    pub(super) simulate: Option<TrafficShape>,

    /// Requests in all.
    #[arg(long, value_name = "N", requires = "simulate")]
    pub(super) requests: Option<u64>,

    /// Mean arrivals per second, Poisson; `all` for everything at the start.
    #[arg(long, value_name = "RATE", requires = "simulate", value_parser = parse_rate)]
    pub(super) rate: Option<Rate>,

    /// Prompt lengths: constant:512, uniform:min=16,max=512, exponential:mean=200,max=2048,
    /// lognormal:median=300,sigma=1.0,max=4096.
    #[arg(long, value_name = "LENGTHS", requires = "simulate")]
    pub(super) prompt_lengths: Option<Lengths>,

    /// Output lengths, as above.
    #[arg(long, value_name = "LENGTHS", requires = "simulate")]
    pub(super) output_lengths: Option<Lengths>,

    /// Most prompt tokens of one request in a step.
    #[arg(long, value_name = "N", requires = "simulate")]
    pub(super) max_chunk: Option<u32>,

    /// Tokens that the KV cache holds.
    #[arg(long, value_name = "N", requires = "simulate")]
    pub(super) kv_tokens: Option<u64>,

    /// The same seed gives the same traffic.
    #[arg(long, value_name = "N", requires = "simulate")]
    pub(super) seed: Option<u64>,

    /// Also write the generated log.
    #[arg(long, value_name = "FILE", requires = "simulate")]
    pub(super) save_log: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LaunchedArg {
    /// Every step that a size holds replays.
    Never,
    /// Each step takes the cheaper way.
    PerStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Theme {
    /// The viewer's preference.
    Auto,
    /// Dark ink on a light ground.
    Light,
    /// Light ink on a dark ground.
    Dark,
}

/// Arrivals per second, or everything at the start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate(pub(super) Option<f64>);

impl PlanArgs {
    pub(super) fn has_traffic(&self) -> bool {
        self.log.is_some() || self.simulation.simulate.is_some()
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match percent {
        0.0..=100.0 => Ok(percent),
        _ => Err(format!("{text} is not from 0 to 100")),
    }
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "all" {
        return Ok(Rate(None));
    }
    text.parse().map(|rate| Rate(Some(rate))).map_err(|_| format!("{text:?} is no rate"))
}
