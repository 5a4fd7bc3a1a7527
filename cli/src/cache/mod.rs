//! `piecewise cache`: what is in the compile cache, and why something is not.

mod archive;
mod explain;
mod list;
mod location;
mod show;
mod upkeep;

use super::print::print_line;
use clap::Subcommand;
use piecewise::assembly::Registries;
use std::process::ExitCode;

/// Arguments of `cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise cache list --sort size --filter sm_90
  piecewise cache explain --preset qwen3-8b --device cuda:sm_90a
  piecewise cache gc --max-size 1GiB
  piecewise cache export pieces.pwc --filter sm_90")]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Print the folder of the cache.
    Path(location::Location),
    /// List the entries.
    List(list::ListArgs),
    /// Show one entry: its factors, kernels and launches.
    Show(show::ShowArgs),
    /// Read every entry in full and name what is bad.
    Verify(upkeep::VerifyArgs),
    /// Say for each piece of a model whether the cache has it, and if not, what is nearest.
    Explain(Box<explain::ExplainArgs>),
    /// Remove the least recently used entries.
    Gc(upkeep::GcArgs),
    /// Remove all entries.
    Clear(location::Location),
    /// Write entries to a file, to be imported elsewhere.
    Export(archive::ExportArgs),
    /// Take the entries of a file.
    Import(archive::ImportArgs),
}

pub(crate) fn run(args: CacheArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    match args.command {
        CacheCommand::Path(location) => {
            print_line(&location.dir()?.display().to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::List(args) => list::run(&args),
        CacheCommand::Show(args) => show::run(&args),
        CacheCommand::Verify(args) => upkeep::verify(&args),
        CacheCommand::Explain(args) => explain::run(*args, registries),
        CacheCommand::Gc(args) => upkeep::gc(&args),
        CacheCommand::Clear(location) => upkeep::clear(&location),
        CacheCommand::Export(args) => archive::export(&args),
        CacheCommand::Import(args) => archive::import(&args),
    }
}
