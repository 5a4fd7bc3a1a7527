//! The `piecewise` command line.

mod cli;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run(cli::Arguments::parse()) {
        Ok(code) => code,
        Err(error) => cli::fail(&error),
    }
}
