//! What can go wrong while planning, each with what to try.

use std::io;
use std::path::{Path, PathBuf};

use crate::cost_path::CostPath;
use crate::log_line::MalformedLine;

/// An error of the capture planner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum PlannerError {
    /// A file could not be opened, read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// A stream of lines broke off.
    #[error("cannot read line {line}: {source}")]
    Stream {
        /// One-based number of the line.
        line: u64,
        source: io::Error,
    },
    /// The log holds no step with at least one token.
    #[error(
        "the log has no step to plan for: {lines} lines, {idle} of them idle, {malformed} malformed{}; \
         record one with `--iteration-log FILE` while serving",
        first_malformed(.first)
    )]
    EmptyLog {
        /// Lines that are not blank.
        lines: u64,
        /// Lines of steps without tokens.
        idle: u64,
        /// Lines that could not be used.
        malformed: u64,
        first: Vec<MalformedLine>,
    },
    /// More lines are malformed than the threshold allows.
    #[error(
        "{malformed} of {lines} lines are malformed, above the threshold of {threshold_percent} %{}; \
         repair the log or raise the threshold with `--max-malformed PERCENT`",
        first_malformed(.first)
    )]
    TooManyMalformed {
        /// Lines that could not be used.
        malformed: u64,
        /// Lines that are not blank.
        lines: u64,
        /// The threshold, in percent of the lines.
        threshold_percent: f64,
        first: Vec<MalformedLine>,
    },
    /// A setting that is out of its range, or below what the log has.
    #[error("{what} is {problem}")]
    Setting {
        what: &'static str,
        /// What was given, what is accepted, and what to try.
        problem: String,
    },
    /// Fewer graphs than lists that each must cover their maximum.
    #[error(
        "--max-graphs is {given}, but {least} are needed to cover the maxima: one for each token \
         size, one for each decode size and query length; raise it, or plan with --graph-mode piecewise"
    )]
    TooFewGraphs {
        given: usize,
        /// The fewest that cover the maxima.
        least: usize,
    },
    /// The table of the dynamic program would be too large.
    #[error(
        "{candidates} candidate sizes and {graphs} graphs are too many to plan at once: \
         lower --max-graphs, or round sizes with --multiple-of 8"
    )]
    TooManyCandidates { candidates: usize, graphs: usize },
    /// The objective and the other settings contradict each other.
    #[error("{what}; {try_instead}")]
    Contradiction { what: &'static str, try_instead: &'static str },
    /// A line of a costs file is no cost point.
    #[error(
        "line {line} of the costs is no cost point: {reason}; a line is \
         {{\"path\":\"piecewise\",\"tokens\":512,\"us\":830.0,\"memory_bytes\":9000000,\"capture_us\":2600.0}}"
    )]
    CostLine {
        /// One-based number of the line.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Costs of one way to run a step were not measured.
    #[error(
        "the costs have no point of path `{path}`, which this plan needs; measure it with \
         `bench --costs`, or change --graph-mode or --launched"
    )]
    CostsMissing {
        /// The way to run a step.
        path: CostPath,
    },
    /// Two neighbouring cost points are too far apart to interpolate, or the range is not covered.
    #[error(
        "the costs of path `{path}` have a gap: {}; measure a size there with `bench --costs`",
        describe_gap(*.from, *.to)
    )]
    CostsGap {
        /// The way to run a step.
        path: CostPath,
        /// The last size below the gap, or none before the first.
        from: Option<u32>,
        /// The first size above the gap, or the size needed.
        to: u32,
    },
    /// A configuration is no TOML.
    #[error("the configuration is no TOML: {0}")]
    ConfigSyntax(#[from] toml::de::Error),
    /// A key of the configuration has a value that cannot be used.
    #[error("`{key}` in the configuration is {found}; {expected}")]
    ConfigValue { key: &'static str, found: String, expected: &'static str },
    /// A key of the configuration is missing, or there twice.
    #[error(
        "the configuration has {count} keys `{key}`; give it once, at the top level or in one table"
    )]
    ConfigKeyCount {
        key: &'static str,
        /// How often it is there.
        count: usize,
    },
}

impl PlannerError {
    /// What became of a file that could not be read or written.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_path_buf(), source }
    }

    /// Holds each limit to `1..=most`.
    pub(crate) fn check_limits<const N: usize>(
        limits: [(&'static str, u64, u64); N],
    ) -> Result<(), Self> {
        let problem = |value: u64, most: u64| match value {
            0 => Some("0: give the scheduler's limit, 1 or more".to_owned()),
            _ => (value > most).then(|| format!("{value}, above {most}: is the unit right?")),
        };
        for (what, value, most) in limits {
            if let Some(problem) = problem(value, most) {
                return Err(Self::Setting { what, problem });
            }
        }
        Ok(())
    }

    /// Refuses to plan for no graphs at all.
    pub(crate) fn check_graphs(graphs: usize, most: usize) -> Result<(), Self> {
        if graphs == 0 {
            let problem = "0: a plan needs at least one graph; run with graph mode `none` to \
                           capture nothing";
            return Err(Self::Setting { what: "--max-graphs", problem: problem.to_owned() });
        }
        Self::check_limits([("--max-graphs", graphs as u64, most as u64)])
    }
}

fn first_malformed(lines: &[MalformedLine]) -> String {
    let mut text = String::new();
    for line in lines.iter().take(3) {
        text.push_str(&format!("; {line}"));
    }
    text
}

fn describe_gap(from: Option<u32>, to: u32) -> String {
    match from {
        Some(from) => format!("nothing between {from} and {to} tokens"),
        None => format!("nothing at or below {to} tokens"),
    }
}
