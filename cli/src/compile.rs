//! `piecewise compile`: fills the cache ahead of time.

use super::amounts::shown_bytes;
use super::kept::what_is_lacking;
use super::load::print_settings;
use super::model_source::SourceArgs;
use super::print::{print_line, print_report};
use anyhow::{Context, bail};
use piecewise::assembly::{Planned, Registries};
use piecewise_passes::PassRun;
use piecewise_runtime::store::{CacheStore, PIECE_KIND};
use piecewise_runtime::words::CompileCounts;
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise compile --model examples/tiny-qwen3
  piecewise compile --preset qwen3-8b --device cuda:sm_90a --cache-dir cache
  piecewise compile --model DIR --max-num-seqs 128   # as `serve --max-num-seqs 128`
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

pub(crate) fn run(mut args: CompileModelArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.source.bring()?;
    let started = Instant::now();
    let assembly = args.source.assembly(registries)?;
    let settings = assembly.settings()?;
    if args.source.prints_settings() {
        return print_settings(&settings, args.json);
    }
    let config = &settings.config.cache;
    if config.read_only {
        bail!("`compile` fills the cache, which is not to be changed (cache.read_only)");
    }
    let store = Arc::new(CacheStore::open(config).context("there is nothing to fill")?);
    let planned = assembly.store(store.clone()).plan()?;
    let beside = args.source.beside()?.into_iter();
    let beside = beside.map(|(_, other)| other.store(store.clone()).plan());
    let beside = beside.collect::<Result<Vec<_>, _>>()?;
    let all = || std::iter::once(&planned).chain(&beside);
    if let Err(error) = store.cache.check_writable(PIECE_KIND)
        && lacks_pieces(&store, all())?
    {
        return Err(error).context("not everything is in the cache, and nothing can be put there");
    }
    let planning_seconds = started.elapsed().as_secs_f64();
    let (mut counts, mut pieces_to_measure) = (CompileCounts::default(), 0);
    for planned in all() {
        let artifacts = planned.artifacts()?;
        let artifacts = artifacts.iter().flatten();
        pieces_to_measure += artifacts.filter(|artifact| artifact.has_choices()).count();
        counts.add(&planned.counts());
    }
    let time =
        |run: &PassRun| PassTime { name: run.name.clone(), seconds: run.elapsed.as_secs_f64() };
    let passes: Vec<_> = planned.passes().passes.iter().map(time).collect();
    let passes_seconds = passes.iter().map(|pass| pass.seconds).sum();
    let layers = planned.facts().and_then(|facts| facts.num_layers);
    let report = CompileReport {
        target: planned.compiler()?.target(),
        cache: store.cache.dir(),
        counts: &counts,
        pieces_to_measure,
        bad_entries: store.cache.events().quarantined,
        passes_seconds,
        passes_seconds_per_layer: layers.map(|layers| passes_seconds / layers as f64),
        layers,
        passes,
        planning_seconds,
        seconds: started.elapsed().as_secs_f64(),
    };
    print_report(args.json, &report, || show(&report))?;
    match what_is_lacking(&store, config.remote_url.is_some() && config.remote_write) {
        Some(reason) => bail!("not everything is in the cache: {reason}"),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Whether a piece of these is not in the directory of the cache.
fn lacks_pieces<'p>(
    store: &CacheStore,
    mut all: impl Iterator<Item = &'p Planned>,
) -> anyhow::Result<bool> {
    let lacks = |planned: &Planned| {
        let compiler = planned.compiler()?;
        let mut keys = planned.jobs()?.into_iter().map(|job| job.key(compiler));
        keys.try_fold(false, |lacks, key| {
            let path = store.cache.path_of(PIECE_KIND, &key?.digest().0);
            anyhow::Ok(lacks || !path.exists())
        })
    };
    all.try_fold(false, |found, planned| Ok(found || lacks(planned)?))
}

#[derive(Serialize)]
struct CompileReport<'a> {
    target: String,
    cache: &'a Path,
    #[serde(flatten)]
    counts: &'a CompileCounts,
    /// Pieces with several ways, among which only a run on the device can choose.
    pieces_to_measure: usize,
    /// Entries that were bad; they were made again.
    bad_entries: u64,
    /// How long each pass took without verification, in the order in which they ran.
    passes: Vec<PassTime>,
    passes_seconds: f64,
    layers: Option<usize>,
    passes_seconds_per_layer: Option<f64>,
    /// Everything before the first piece is compiled: reading, building the graph, passes and
    /// their verification.
    planning_seconds: f64,
    seconds: f64,
}

#[derive(Serialize)]
struct PassTime {
    name: String,
    seconds: f64,
}

fn show(report: &CompileReport<'_>) -> anyhow::Result<()> {
    let counts = report.counts;
    let shown = CompileCounts::of_kinds;
    let (read, written) = (shown_bytes(counts.bytes_read), shown_bytes(counts.bytes_written));
    print_line(&format!("compiled  {} ({written} written)", shown(&counts.compiled)))?;
    let packs = match counts.from_packs {
        0 => String::new(),
        kernels => format!(", {kernels} of packs"),
    };
    print_line(&format!("reused    {} ({read} read){packs}", shown(&counts.reused)))?;
    let unusual = counts.misses.iter().filter(|(reason, _)| **reason != "absent");
    for (reason, n) in unusual {
        let pieces = if *n == 1 { "piece" } else { "pieces" };
        print_line(&format!("missed    {n} {pieces}: {reason}"))?;
    }
    if report.bad_entries > 0 {
        print_line(&format!("healed    {} bad entries", report.bad_entries))?;
    }
    if report.pieces_to_measure > 0 {
        print_line(&format!(
            "measured  nothing: {} pieces have several ways, among which `piecewise tune` on the device \
             chooses",
            report.pieces_to_measure
        ))?;
    }
    print_line(&format!("target    {}", report.target))?;
    print_line(&format!("cache     {}", report.cache.display()))?;
    let per_layer = match (report.layers, report.passes_seconds_per_layer) {
        (Some(layers), Some(seconds)) => {
            format!(": {:.2} ms for each of {layers} layers", seconds * 1e3)
        }
        _ => String::new(),
    };
    print_line(&format!("passes    {:.1} ms{per_layer}", report.passes_seconds * 1e3))?;
    let (all, planning) = (report.seconds, report.planning_seconds);
    print_line(&format!("seconds   {all:.2}, {planning:.2} before compiling"))
}
