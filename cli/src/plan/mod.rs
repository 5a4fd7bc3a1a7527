//! `piecewise plan`: choose capture sizes.

mod args;
mod input;
mod json;
mod pictures;
mod report;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use piecewise_planner::{
    Coverage, LogHead, bounded_lists, check, compare, plan, read_configured_sizes,
};

pub(crate) use args::PlanArgs;

/// The exit status when the coverage is below `--require-coverage`.
const COVERAGE_TOO_LOW: u8 = 3;

/// Runs the subcommand; the result is printed to standard output.
pub(crate) fn run(args: PlanArgs) -> Result<ExitCode> {
    let (text, coverage) = if args.has_traffic() {
        plan_for_traffic(&args)?
    } else {
        (plan_without_traffic(&args)?, None)
    };
    print(&text)?;
    match (args.require_coverage, coverage) {
        (Some(required), Some(coverage)) if below(required, &coverage) => {
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

fn plan_for_traffic(args: &PlanArgs) -> Result<(String, Option<Coverage>)> {
    let input = input::read(args)?;
    if let Some(directory) = &args.pictures {
        pictures::make(directory)?;
    }
    let question = input.request.on(&input.traffic, &input.costs);
    if let Some(config) = &args.check {
        let text = std::fs::read_to_string(config)
            .with_context(|| format!("cannot read the configuration {}", config.display()))?;
        let mut configured = read_configured_sizes(&text)?;
        let head = input.log.as_ref().map(|log| &log.head);
        let of_log = |bound: fn(&LogHead) -> Option<u32>| head.and_then(bound);
        configured.max_num_tokens =
            configured.max_num_tokens.or(of_log(|head| head.max_num_tokens));
        configured.max_num_seqs = configured.max_num_seqs.or(of_log(|head| head.max_num_seqs));
        let checked = check(&configured, question)?;
        let text = match args.json {
            true => json::check(&input, &checked)?,
            false => report::check(&input, &checked),
        };
        return Ok((text, Some(checked.outcome.coverage)));
    }
    let found = plan(question)?;
    let comparisons = compare(question)?;
    if let Some(directory) = &args.pictures {
        pictures::write(directory, args.theme, &input, &found)?;
    }
    let text = match args.json {
        true => json::plan(&input, &found, &comparisons)?,
        false => report::plan(&input, &found, &comparisons),
    };
    Ok((text, Some(found.outcome.coverage)))
}

fn plan_without_traffic(args: &PlanArgs) -> Result<String> {
    let (Some(graphs), Some(max_num_tokens)) = (args.max_graphs, args.max_num_tokens) else {
        bail!(
            "nothing to plan from: give a log (--log FILE), traffic to simulate (--simulate chat), \
             or, for a list with a bounded worst case, --max-graphs K and --max-num-tokens N"
        );
    };
    if args.check.is_some() || args.pictures.is_some() || args.require_coverage.is_some() {
        bail!(
            "--check, --pictures and --require-coverage need traffic: \
             give a log (--log FILE) or traffic to simulate (--simulate chat)"
        );
    }
    let lists = bounded_lists(graphs, max_num_tokens, args.max_num_seqs)?;
    Ok(if args.json { json::bounded(&lists)? } else { report::bounded(&lists) })
}

fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
