//! `piecewise tune`: measures to its end what only a measurement can choose.

use super::kept::what_is_lacking;
use super::load::{print_settings, with_remedy};
use super::model_source::SourceArgs;
use super::print::{print_line, print_report};
use anyhow::{Context, bail};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use piecewise::assembly::{Registries, Tuned};
use piecewise_runtime::device::{Gain, Verdict, WaysOrigin};
use piecewise_runtime::store::{CacheStore, PIECE_KIND};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise tune --model DIR --device cuda
  piecewise tune --model DIR --device cuda --tune-seconds 60     # the next call goes on
  piecewise tune --preset qwen3-8b --device cuda --json

Sizes come from the same settings as those of a run: what is remembered here is what a start with the
same settings takes. A start measures nothing unless it is told to by --tune measure.")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(mut args: TuneArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.source.bring()?;
    let assembly = args.source.weighted(registries)?;
    let settings = assembly.settings()?;
    if args.source.prints_settings() {
        return print_settings(&settings, args.json);
    }
    let config = &settings.config.cache;
    if config.read_only {
        bail!("`tune` remembers in the cache, which is not to be changed (cache.read_only)");
    }
    let store = CacheStore::open(config).context("there is nothing to remember in")?;
    store.cache.check_writable(PIECE_KIND).context("there is nothing to remember in")?;
    let store = Arc::new(store);
    let tuned = assembly.store(store.clone()).plan()?.tuned();
    let tuned =
        tuned.map_err(|error| with_remedy(error, "max_num_tokens, max_num_seqs or max_seq_len"))?;
    let report = TuneReport { cache: store.cache.dir(), tuned: &tuned };
    print_report(args.json, &report, || show(&report))?;
    match what_is_lacking(&store, config.remote_url.is_some() && config.remote_write) {
        Some(reason) => bail!("not everything is remembered: {reason}"),
        None => Ok(ExitCode::SUCCESS),
    }
}

#[derive(Serialize)]
struct TuneReport<'a> {
    cache: &'a Path,
    #[serde(flatten)]
    tuned: &'a Tuned,
}

fn show(report: &TuneReport<'_>) -> anyhow::Result<()> {
    let Tuned { gains, report: counts, device, graph_mode, .. } = report.tuned;
    if !gains.is_empty() {
        print_line(&table(gains).to_string())?;
    } else if counts.unmeasured == 0 {
        print_line("nothing   to choose: each part has one way on this device")?;
    }
    let kept = gains.iter().filter(|gain| gain.verdict == Verdict::Kept).count();
    let before = gains.iter().filter(|gain| gain.origin == WaysOrigin::Remembered).count();
    let measured = gains.len() - before;
    let seconds = counts.time.as_secs_f64();
    print_line(&format!(
        "measured  {measured} choices in {seconds:.1} s, {before} known from before"
    ))?;
    print_line(&format!(
        "gains     {kept} of {} above the spread, which every start takes from now on",
        gains.len()
    ))?;
    if counts.unmeasured > 0 {
        print_line(&format!(
            "left      {} choices that time was short for or whose steps can't be captured; the next \
             `tune` goes on",
            counts.unmeasured
        ))?;
    }
    print_line(&format!("device    {device}, graph mode {graph_mode}"))?;
    print_line(&format!("cache     {}", report.cache.display()))
}

/// Choices with what they gain, beside what the same step differs by from itself.
fn table(gains: &[Gain]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["choice", "size", "before us", "after us", "gain", "spread", "", "ways"]);
    for gain in gains {
        let origin = if gain.origin == WaysOrigin::Remembered { ", from before" } else { "" };
        table.add_row([
            gain.choice.clone(),
            gain.size.clone(),
            format!("{:.1}", gain.before_us),
            format!("{:.1}", gain.after_us),
            format!("{:+.2}%", gain.share() * 100.0),
            format!("{:.2}%", gain.spread * 100.0),
            format!("{}{origin}", gain.verdict),
            gain.ways.clone(),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
