//! Progress bars on standard error, where it is a terminal.

use super::logs::{tell, warn};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use piecewise::assembly::{Notice, rounded};
use piecewise_runtime::words::Progress;
use std::time::{Duration, Instant};

/// What takes less than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(250);

/// Shows what an assembly tells: bars, and lines on standard error.
pub(super) fn watcher() -> impl FnMut(Notice<'_>) + Send + 'static {
    let mut bars = BuildBars { started: Instant::now(), bar: None };
    move |notice| match notice {
        Notice::Progress(progress) => bars.show(progress),
        Notice::Warning(text) => warn(text),
        Notice::Rounded(format, found) => tell(&rounded(format, found)),
        Notice::OnCpu(reason) => tell(&format!("running on the CPU: {reason}")),
        _ => {}
    }
}

/// One bar for each phase of building a model.
#[derive(Debug)]
struct BuildBars {
    started: Instant,
    bar: Option<(&'static str, ProgressBar)>,
}

impl BuildBars {
    fn show(&mut self, progress: Progress) {
        if self.started.elapsed() < PATIENCE {
            return;
        }
        let (phase, done, total) = match progress {
            Progress::Compiling { done, total } => ("compiling", done as u64, total as u64),
            Progress::Loading { done, total } => ("loading", done, total),
            Progress::Measuring { done, total, .. } => ("measuring", done as u64, total as u64),
            Progress::Capturing { done, total } => ("capturing", done as u64, total as u64),
        };
        if !matches!(&self.bar, Some((shown, _)) if *shown == phase) {
            self.clear();
            let most = match progress {
                Progress::Measuring { budget, .. } if budget < Duration::MAX => {
                    format!(" of at most {}s", budget.as_secs())
                }
                _ => String::new(),
            };
            let bar = match progress {
                Progress::Loading { .. } => bar_of(phase, total, "{bytes}/{total_bytes}"),
                _ => bar_of(phase, total, "{pos}/{len}"),
            };
            self.bar = Some((phase, bar.with_prefix(most)));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(done);
        }
        if done == total {
            self.clear();
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A bar of `total` steps.
pub(super) fn bar(phase: &'static str, total: usize) -> ProgressBar {
    bar_of(phase, total as u64, "{pos}/{len}")
}

/// A bar that shows how much of `total` is done as `amounts` has it.
fn bar_of(phase: &'static str, total: u64, amounts: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = format!("{{msg:>10}} [{{bar:30}}] {amounts} {{elapsed}}{{prefix}}");
    let style = ProgressStyle::with_template(&style);
    bar.with_style(style.map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("=> ")))
        .with_message(phase)
}

/// A bar of `total` bytes.
pub(super) fn byte_bar(phase: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = "{msg:>10} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(style);
    bar.with_style(style.map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("=> ")))
        .with_message(phase)
}
