//! What is chosen about a model: how it is built, what checks its steps, and what it keeps while it
//! is suspended.

use super::graphs::OnCaptureFailure;
use crate::batch::{Probe, SyntheticStep};
use crate::dispatch::Dispatcher;
use piecewise_backend::tuning::TuneMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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

/// When the graphs of the mode are captured, and what runs until then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureWhen {
    /// All of them while the model is built.
    #[default]
    Startup,
    /// Each one by the first step that would replay it.
    Lazy,
    /// Between steps, those first that most steps have wanted; until then steps are launched.
    Background,
}

/// Checks that run with every step, for debugging.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checks {
    /// Fill float padding and dead bytes with NaN before each step, and find outputs that are read before
    /// they are there.
    pub poison: bool,
    /// Compare the addresses of each graph with the memory's before each replay.
    pub addresses: bool,
    /// Launch each step again and compare with its replay.
    pub compare: bool,
}

/// What becomes of the weights of a suspended model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspendedWeights {
    /// They stay on the device.
    #[default]
    Keep,
    /// Their memory is given back, too, and they are made again on resume.
    Drop,
}
