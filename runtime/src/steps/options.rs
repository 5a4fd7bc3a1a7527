//! How a model is built.

use crate::batch::{Probe, SyntheticStep};
use crate::dispatch::Dispatcher;
use crate::words::{CaptureWhen, Checks, OnCaptureFailure};
use piecewise_backend::tuning::TuneMode;
use std::time::Duration;

/// How a model is built.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Lists and bounds of dispatch, with the graph mode asked for.
    pub dispatcher: Dispatcher,
    /// The most rows that a step may want logits for; beyond the cap of one head call, the head
    /// runs several times. At least that cap.
    pub max_logit_rows: u64,
    /// The outputs that are read back, by position.
    pub read_outputs: Vec<usize>,
    /// When graphs are captured.
    pub capture: CaptureWhen,
    /// What a failed capture does.
    pub on_capture_failure: OnCaptureFailure,
    /// Failures in a row after which a graph is no longer captured; 0 is never.
    pub capture_attempts: u32,
    /// How often memory may move before graphs are no longer captured again for it; 0 is never.
    pub recapture_limit: u32,
    /// Layers that are launched and never captured, by the scopes in which the model's code made
    /// them: `model.layers.3`, or `model.layers.3.mlp`.
    pub capture_exclude: Vec<String>,
    /// Steps that show what the custom ops can be captured for; without any, what they declare is
    /// believed.
    pub probes: Vec<Probe>,
    /// Whether ways and algorithms are chosen by measurement.
    pub tune: TuneMode,
    /// How long measuring may take; what is not reached is left to whoever measures next. With
    /// [`Duration::MAX`] it goes to its end.
    pub tune_budget: Duration,
    /// Steps that fill the sizes of captured ones, to measure ways in. Without one, a step's pieces are
    /// measured alone.
    pub tuning_steps: Vec<SyntheticStep>,
    /// Whether a step that does not replay, or a mode that can't be, is an error.
    pub strict: bool,
    /// Checks that run with every step.
    pub checks: Checks,
    /// Whether it is measured, once the graphs are captured and whenever the mode is set, for which steps a
    /// replay of the padded size takes longer than another way.
    pub measure_padding: bool,
}
