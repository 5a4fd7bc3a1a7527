//! What commands say on standard output.

use crate::logs::warn;
use anyhow::Context;
use std::io::Write;

/// Prints a line to standard output.
///
/// # Errors
/// When standard output is closed or full.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("can't write to standard output")
}

/// Prints a line for whoever waits for it; what serves goes on without them.
pub(crate) fn announce(line: &str) {
    if let Err(error) = print_line(line) {
        warn(&format!("{error:#}: {line}"));
    }
}

/// Prints a report as JSON, or as `show` does.
///
/// # Errors
/// When standard output is closed.
pub(crate) fn print_report(
    json: bool,
    report: &impl serde::Serialize,
    show: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if json { print_line(&serde_json::to_string_pretty(report)?) } else { show() }
}
