//! The program `piecewise`.

use std::process::ExitCode;

/// Gives memory back after many clients came at once, most of which the C library would keep.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    piecewise_cli::main_with(piecewise::assembly::Registries::standard())
}
