//! `piecewise plan`: choose capture sizes.

mod args;
mod input;
mod json;
mod report;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use piecewise_planner::{Coverage, LogHead, check, plan, read_configured_sizes};

pub(crate) use args::PlanArgs;

/// The exit status when the coverage is below `--require-coverage`.
const COVERAGE_TOO_LOW: u8 = 3;

/// Runs the subcommand; the result is printed to standard output.
pub(crate) fn run(args: PlanArgs) -> Result<ExitCode> {
    let (text, coverage) = planned(&args)?;
    print(&text)?;
    match args.require_coverage {
        Some(required) if below(required, &coverage) => {
            let message = format!(
                "coverage is {:.2} % of the steps, below the required {required} %\n",
                100.0 * coverage.all().of_steps()
            );
            std::io::stderr().write_all(message.as_bytes())?;
            Ok(ExitCode::from(COVERAGE_TOO_LOW))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn below(required: f64, coverage: &Coverage) -> bool {
    100.0 * coverage.all().of_steps() < required
}

fn planned(args: &PlanArgs) -> Result<(String, Coverage)> {
    let input = input::read(args)?;
    let question = input.request.on(&input.log.traffic, &input.costs);
    if let Some(config) = &args.check {
        let text = std::fs::read_to_string(config)
            .with_context(|| format!("cannot read the configuration {}", config.display()))?;
        let mut configured = read_configured_sizes(&text)?;
        let LogHead { max_num_tokens, max_num_seqs, .. } = input.log.head;
        configured.max_num_tokens = configured.max_num_tokens.or(max_num_tokens);
        configured.max_num_seqs = configured.max_num_seqs.or(max_num_seqs);
        let checked = check(&configured, question)?;
        let text = match args.json {
            true => json::check(&input, &checked)?,
            false => report::check(&input, &checked),
        };
        return Ok((text, checked.outcome.coverage));
    }
    let found = plan(question)?;
    let text = match args.json {
        true => json::plan(&input, &found)?,
        false => report::plan(&input, &found),
    };
    Ok((text, found.outcome.coverage))
}

fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
