//! `piecewise cache list`

use super::location::Location;
use crate::amounts::shown_bytes;
use crate::logs::warn;
use crate::print::print_line;
use clap::ValueEnum;
use comfy_table::{Table, presets};
use piecewise_cache::{CacheAccess, EntryInfo, KeyHex};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Arguments of `cache list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    location: Location,
    /// What comes first: the largest, the last used, or by kind or key.
    #[arg(long, value_enum, default_value_t = Sort::Kind)]
    sort: Sort,
    /// Only entries whose kind, key or a factor contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sort {
    Size,
    Used,
    Kind,
    Key,
}

/// Whether an entry's kind, key or a factor contains a text.
pub(super) fn matches(entry: &EntryInfo, text: &str) -> bool {
    entry.kind.contains(text)
        || KeyHex(&entry.key).to_string().contains(text)
        || entry.factors.iter().any(|(name, value)| name.contains(text) || value.contains(text))
}

pub(super) fn run(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut entries = args.location.open(CacheAccess::ReadOnly)?.entries()?;
    if let Some(text) = &args.filter {
        let all = entries.len();
        entries.retain(|entry| matches(entry, text));
        if entries.is_empty() && all > 0 {
            warn(&format!("none of {all} entries has {text:?} in its kind, key or factors"));
        }
    }
    match args.sort {
        Sort::Size => entries.sort_by_key(|entry| std::cmp::Reverse(entry.bytes)),
        Sort::Used => entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_use)),
        Sort::Kind => {}
        Sort::Key => entries.sort_by_key(|entry| entry.key),
    }
    if args.json {
        print_line(&serde_json::to_string_pretty(&entries)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = SystemTime::now();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["kind", "key", "bytes", "used", "what"]);
    for entry in &entries {
        let key = KeyHex(&entry.key).to_string();
        let age = now.duration_since(entry.last_use).unwrap_or_default();
        let what = summary(entry);
        table.add_row([&entry.kind, &key[..12], &entry.bytes.to_string(), &shown_age(age), &what]);
    }
    let bytes = shown_bytes(entries.iter().map(|entry| entry.bytes).sum());
    if !entries.is_empty() {
        print_line(&table.trim_fmt())?;
    }
    print_line(&format!("{} entries, {bytes}", entries.len()))?;
    Ok(ExitCode::SUCCESS)
}

/// The factors that tell entries of one kind apart for people.
fn summary(entry: &EntryInfo) -> String {
    let telling = ["target", "kernel", "ops", "size", "problem", "device"];
    let shown = telling.iter().filter_map(|wanted| {
        let found = entry.factors.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Cache times are good to an hour, so that nothing finer is shown.
fn shown_age(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => "this hour".to_owned(),
        hours @ 1..=47 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}
