//! The program `piecewise`.

use std::process::ExitCode;

fn main() -> ExitCode {
    piecewise_cli::main_with(piecewise::assembly::Registries::standard())
}
