//! The `piecewise` command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cli;

#[derive(Debug, Parser)]
#[command(name = "piecewise", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Choose capture sizes from an iteration log, from simulated traffic, or for a bound.
    Plan(Box<cli::plan::PlanArgs>),
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Plan(args) => cli::plan::run(*args),
    }
}
