//! `piecewise bench`: how long steps take, on what a device can do.

mod args;
mod costs;
mod launches;
mod measure;
mod report;
mod rows;
mod settings;
mod startup;
mod subject;
mod table;
#[cfg(test)]
mod testing;
mod workload;

use super::load::print_settings;
pub(crate) use args::BenchArgs;
use serde_json::Value;
use settings::Bench;
use std::process::ExitCode;

pub(crate) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let args = Bench::of(args)?;
    if args.shared.print_config {
        let (mut subject, bounds) = match args.startup {
            true => startup::prepare(&args)?,
            false => {
                let prepared = measure::prepare(&args)?;
                (prepared.subject, prepared.bounds)
            }
        };
        return print_settings(&subject.assembly(&args, &bounds)?.settings()?, args.json);
    }
    if args.startup {
        let report = startup::run(&args)?;
        print(args.json, serde_json::to_value(&report)?, || table::startup(&report))?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = measure::run(&args)?;
    print(args.json, serde_json::to_value(&report)?, || table::report(&report))?;
    Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(json: bool, value: Value, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    match json {
        true => super::print_line(&serde_json::to_string_pretty(&value)?),
        false => super::print_line(text().trim_end()),
    }
}
