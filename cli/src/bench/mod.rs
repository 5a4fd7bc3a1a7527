//! `piecewise bench`: how long steps take, on what a device can do.

mod args;
mod bounds;
mod costs;
mod encoder;
mod graph;
mod launches;
mod measure;
mod report;
mod rows;
mod serve;
mod settings;
mod startup;
mod subject;
mod table;
#[cfg(test)]
mod testing;
mod workload;

use super::hub::folder_of;
use super::load::print_settings;
use super::print::{print_line, print_report};
pub(crate) use args::BenchArgs;
use args::BenchCommand;
use piecewise::assembly::Registries;
use settings::Bench;
use std::process::ExitCode;

pub(crate) fn run(args: BenchArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(BenchCommand::Serve(args)) => return serve::run(args),
        Some(BenchCommand::Graph(args)) => return graph::run(args, registries),
        Some(BenchCommand::Encoder(args)) => return encoder::run(args),
        None => {}
    }
    let mut args = args;
    if let Some(model) = &mut args.model {
        *model = folder_of(model)?;
    }
    let args = Bench::of(args, registries.clone())?;
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
        let show = || print_line(table::startup(&report).trim_end());
        print_report(args.json, &report, show)?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = measure::run(&args)?;
    print_report(args.json, &report, || print_line(table::report(&report).trim_end()))?;
    Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
