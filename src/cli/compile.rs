//! `piecewise compile`: fills the cache ahead of time.

use super::amounts::shown_bytes;
use super::device::compiler_for;
use super::lowering::lower;
use super::model_source::{Planned, SourceArgs};
use anyhow::{Context, bail};
use piecewise_runtime::artifact_store::{CacheStore, CompileCounts};
use piecewise_runtime::symbols::SymbolTable;
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise compile --model examples/tiny-qwen3
  piecewise compile --preset qwen3-8b --target cuda:sm_90 --cache-dir cache
  piecewise compile --model DIR --max-num-seqs 1     # as `generate` with one prompt
  piecewise compile graph.pw --json

Sizes come from the same settings as those of a run: what is compiled here is what a run with the
same settings looks for.")]
pub(crate) struct CompileModelArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: CompileModelArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let Some(planned) = args.source.plan(args.json)? else { return Ok(ExitCode::SUCCESS) };
    let passes = started.elapsed().as_secs_f64();
    let Planned { settings, module } = &planned;
    if settings.config.cache.read_only {
        bail!("`compile` fills the cache, which is not to be changed (cache.read_only)");
    }
    let store = CacheStore::open(&settings.config.cache).context("there is nothing to fill")?;
    let compiler = compiler_for(settings.device)?;
    let symbols = SymbolTable::new(module.graph().symbols())?;
    let compiled = lower(settings, planned.stitch()?, &symbols, &*compiler, &store)?;
    let seconds = started.elapsed().as_secs_f64();
    let counts = &compiled.counts;
    if args.json {
        let object = json!({
            "target": compiler.target(),
            "cache": store.cache.dir(),
            "compiled": counts.compiled,
            "reused": counts.reused,
            "misses": counts.misses,
            "bytes_read": counts.bytes_read,
            "bytes_written": counts.bytes_written,
            "passes_seconds": passes,
            "seconds": seconds,
        });
        super::print_line(&serde_json::to_string_pretty(&object)?)?;
    } else {
        show(counts)?;
        super::print_line(&format!("target    {}", compiler.target()))?;
        super::print_line(&format!("cache     {}", store.cache.dir().display()))?;
        super::print_line(&format!("seconds   {seconds:.2}, passes {passes:.2}"))?;
    }
    let events = store.cache.events();
    match events.conditions.first() {
        Some(condition) => bail!("not everything is in the cache: {}", condition.message),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn show(counts: &CompileCounts) -> anyhow::Result<()> {
    let shown = |counts: &std::collections::BTreeMap<&str, u64>| {
        let each: Vec<_> = counts.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        if each.is_empty() { "nothing".to_owned() } else { each.join(", ") }
    };
    let (read, written) = (shown_bytes(counts.bytes_read), shown_bytes(counts.bytes_written));
    super::print_line(&format!("compiled  {} ({written} written)", shown(&counts.compiled)))?;
    super::print_line(&format!("reused    {} ({read} read)", shown(&counts.reused)))?;
    let unusual = counts.misses.iter().filter(|(reason, _)| **reason != "absent");
    for (reason, n) in unusual {
        super::print_line(&format!("missed    {n} piece: {reason}"))?;
    }
    Ok(())
}
