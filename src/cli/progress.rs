//! Progress bars on standard error, where it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use piecewise_runtime::model::Progress;

/// One bar for each phase of building a model.
#[derive(Debug)]
pub(super) struct BuildBars {
    bar: ProgressBar,
    phase: &'static str,
}

impl BuildBars {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{msg:>10} [{bar:30}] {pos}/{len} {elapsed}")
        {
            bar.set_style(style);
        }
        Self { bar, phase: "" }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        let (phase, done, total) = match progress {
            Progress::Compiling { done, total } => ("compiling", done, total),
            Progress::Loading { done, total } => ("loading", done, total),
            Progress::Capturing { done, total } => ("capturing", done, total),
        };
        if phase != self.phase {
            self.phase = phase;
            self.bar.reset();
            self.bar.set_message(phase);
            self.bar.set_length(total as u64);
        }
        self.bar.set_position(done as u64);
    }

    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
