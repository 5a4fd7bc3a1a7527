//! The flags of `piecewise plan`.

use std::path::PathBuf;

use super::super::named::named;
use clap::{Args, ValueEnum};
use piecewise_planner::{GraphMode, Objective};

const EXAMPLES: &str = "\
Examples:
  Choose sizes from a log, as many as pay off:
    piecewise plan --log iterations.jsonl --max-num-tokens 8192 --max-num-seqs 256

  At most 24 graphs, least padding, for a script:
    piecewise plan --log iterations.jsonl --max-graphs 24 --objective padding --json

  With measured costs:
    piecewise plan --log iterations.jsonl --costs costs.jsonl

  What is wrong with a configuration (exit status 3 if fewer than 95 % of the steps replay):
    piecewise plan --log iterations.jsonl --check piecewise.toml --require-coverage 95

A log is what serve, worker, chat and generate write with --iteration-log FILE.
Exit status: 0 done, 1 error, 2 wrong usage, 3 coverage below --require-coverage.";

/// Choose capture sizes from an iteration log.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Iteration log to plan for; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    pub(super) log: PathBuf,

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

    /// Measured costs, as written by `bench --costs`; modelled if absent.
    #[arg(long, value_name = "FILE")]
    pub(super) costs: Option<PathBuf>,

    /// Exit with status 3 when a smaller share of the steps replays.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(super) require_coverage: Option<f64>,

    /// Fail when more of the log's lines are malformed.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub(super) max_malformed: f64,

    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LaunchedArg {
    /// Every step that a size holds replays.
    Never,
    /// Each step takes the cheaper way.
    PerStep,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match percent {
        0.0..=100.0 => Ok(percent),
        _ => Err(format!("{text} is not from 0 to 100")),
    }
}
