//! `piecewise cache verify`, `gc` and `clear`

use super::location::Location;
use crate::amounts::{parse_bytes, shown_bytes};
use crate::logs::warn;
use crate::print::print_line;
use piecewise_cache::{CacheAccess, GcReport};
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `cache verify`.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    location: Location,
    /// Remove what is bad.
    #[arg(long)]
    repair: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `cache gc`.
#[derive(Debug, clap::Args)]
pub(super) struct GcArgs {
    #[command(flatten)]
    location: Location,
    /// Bytes that may be left, also with KiB, MiB or GiB [default: cache.max_bytes].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_size: Option<u64>,
}

pub(super) fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let access = if args.repair { CacheAccess::ReadWrite } else { CacheAccess::ReadOnly };
    let report = args.location.open(access)?.verify(args.repair);
    let bad: Vec<_> =
        report.bad.iter().map(|bad| format!("{}/{}: {}", bad.kind, bad.name, bad.reason)).collect();
    let failed: Vec<_> = report.failed.iter().map(ToString::to_string).collect();
    if args.json {
        let object = json!({
            "good_entries": report.good_entries,
            "good_bytes": report.good_bytes,
            "bad": bad,
            "set_aside": report.set_aside,
            "stale": report.stale,
            "foreign": report.foreign,
            "removed": report.removed,
            "failed": failed,
        });
        print_line(&serde_json::to_string_pretty(&object)?)?;
    } else {
        let sound = format!("{} sound entries", report.good_entries);
        print_line(&format!("{sound}, {}", shown_bytes(report.good_bytes)))?;
        for bad in &bad {
            print_line(&format!("bad: {bad}"))?;
        }
        let others = [
            (report.set_aside, "bad entries were set aside before; --repair removes them"),
            (report.stale, "files of writers that died; --repair removes them"),
            (report.foreign.len() as u64, "files that are not the cache's"),
            (report.removed, "removed"),
        ];
        for (n, what) in others.into_iter().filter(|(n, _)| *n > 0) {
            print_line(&format!("{n} {what}"))?;
        }
        for failed in &failed {
            warn(failed);
        }
    }
    match failed.is_empty() && (args.repair || report.is_sound()) {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

pub(super) fn gc(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let max_size = args.max_size.map_or_else(|| args.location.max_bytes(), Ok)?;
    report(&args.location.open(CacheAccess::ReadWrite)?.gc(max_size)?)
}

pub(super) fn clear(location: &Location) -> anyhow::Result<ExitCode> {
    report(&location.open(CacheAccess::ReadWrite)?.clear()?)
}

fn report(swept: &GcReport) -> anyhow::Result<ExitCode> {
    let (removed, kept) = (shown_bytes(swept.removed_bytes), shown_bytes(swept.kept_bytes));
    print_line(&format!(
        "removed {} entries and {} leftovers, {removed}; {} entries are left, {kept}",
        swept.removed_entries, swept.removed_leftovers, swept.kept_entries
    ))?;
    match swept.failed {
        0 => Ok(ExitCode::SUCCESS),
        n => anyhow::bail!("{n} files could not be removed"),
    }
}
