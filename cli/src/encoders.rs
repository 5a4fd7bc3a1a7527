//! What `embed` and `encode` share: items in calls under a bar, and what ran.

use super::progress::bar;
use super::say;
use piecewise_runtime::config::{ConfigError, ConfigLayers};
use piecewise_runtime::stats::Statistics;
use std::ops::Range;

/// Items that are encoded in one call: packing looks at all of them.
const CALL: usize = 1024;
/// Rows that a step has room for at least, and for the largest item in any case.
const STEP_ROWS: usize = 512;

/// Makes a step large enough for an item of `largest` rows, unless somebody says how large it is.
pub(super) fn room_for(layers: ConfigLayers, largest: usize) -> Result<ConfigLayers, ConfigError> {
    let rows = i64::try_from(largest.max(STEP_ROWS)).unwrap_or(i64::MAX);
    layers.derived("max_num_tokens", rows, "the largest item")
}

/// What `encode` makes of so many items, in calls.
pub(super) fn in_calls<T>(
    phase: &'static str,
    items: usize,
    mut encode: impl FnMut(Range<usize>) -> Vec<T>,
) -> Vec<T> {
    let bar = (items > CALL).then(|| bar(phase, items));
    let mut results = Vec::with_capacity(items);
    while results.len() < items {
        let start = results.len();
        results.extend(encode(start..items.min(start + CALL)));
        if let Some(bar) = &bar {
            bar.set_position(results.len() as u64);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    results
}

/// Shows what ran, on standard error.
pub(super) fn show_statistics(items: &str, stats: &Statistics) {
    say(&format!(
        "{items} in {} steps, {} replayed, {:.1}% of tokens padding",
        stats.steps,
        stats.replayed_steps(),
        100.0 * stats.padding_share()
    ));
    for (budget, n) in &stats.piece_replays {
        say(&format!("budget {budget}: {n} replays of pieces"));
    }
    for (reason, n) in stats.fallbacks.iter().filter(|(_, n)| **n > 0) {
        say(&format!("launched: {n} steps, {reason}"));
    }
}
