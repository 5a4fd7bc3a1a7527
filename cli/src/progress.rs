//! Progress bars on standard error, where it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use piecewise_runtime::model::Progress;
use std::time::{Duration, Instant};

/// What takes less than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(250);

/// One bar for each phase of building a model.
#[derive(Debug)]
pub(super) struct BuildBars {
    started: Instant,
    bar: Option<(&'static str, ProgressBar)>,
}

impl BuildBars {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), bar: None }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        if self.started.elapsed() < PATIENCE {
            return;
        }
        let (phase, done, total) = match progress {
            Progress::Compiling { done, total } => ("compiling", done, total),
            Progress::Loading { done, total } => ("loading", done, total),
            Progress::Capturing { done, total } => ("capturing", done, total),
        };
        if !matches!(&self.bar, Some((shown, _)) if *shown == phase) {
            self.clear();
            self.bar = Some((phase, bar(phase, total)));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    pub(super) fn finish(mut self) {
        self.clear();
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(phase: &'static str, total: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:>10} [{bar:30}] {pos}/{len} {elapsed}");
    bar.with_style(style.map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("=> ")))
        .with_message(phase)
}
