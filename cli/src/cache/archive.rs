//! `piecewise cache export` and `import`

use super::list::matches;
use super::location::Location;
use crate::amounts::shown_bytes;
use crate::logs::warn;
use crate::print::print_line;
use anyhow::bail;
use piecewise_cache::{CacheAccess, EntryInfo};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `cache export`.
#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The file to write.
    file: PathBuf,
    #[command(flatten)]
    location: Location,
    /// Only entries whose kind, key or a factor contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only entries of this kind: `cubin` makes a pack of kernels.
    #[arg(long)]
    kind: Option<String>,
}

/// Arguments of `cache import`.
#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The file that was exported.
    file: PathBuf,
    #[command(flatten)]
    location: Location,
}

pub(super) fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let wanted = |entry: &EntryInfo| {
        args.filter.as_ref().is_none_or(|text| matches(entry, text))
            && args.kind.as_ref().is_none_or(|kind| entry.kind == *kind)
    };
    let cache = args.location.open(CacheAccess::ReadOnly)?;
    if (args.filter.is_some() || args.kind.is_some()) && !cache.entries()?.iter().any(wanted) {
        let kind = args.kind.as_ref().map_or(String::new(), |kind| format!(" of kind {kind:?}"));
        let text = args.filter.as_ref();
        let text = text
            .map_or(String::new(), |text| format!(" with {text:?} in its kind, key or factors"));
        bail!("there is no entry{kind}{text}; `piecewise cache list` has them");
    }
    let report = cache.export(&args.file, wanted)?;
    let (bytes, file) = (shown_bytes(report.bytes), args.file.display());
    print_line(&format!("wrote {} entries, {bytes}, to {file}", report.entries))?;
    if report.skipped > 0 {
        warn(&format!("{} entries are bad or gone, and left out", report.skipped));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let report = args.location.open(CacheAccess::ReadWrite)?.import(&args.file)?;
    let (added, present) = (report.added, report.present);
    print_line(&format!("added {added} entries; {present} were there"))?;
    for refused in &report.refused {
        warn(&format!("entry {} is refused: {}", refused.index, refused.reason));
    }
    if report.refused.is_empty() { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::FAILURE) }
}
