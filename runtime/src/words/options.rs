//! What is chosen about a model: when it captures, what checks its steps, and what it keeps while it
//! is suspended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

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

/// What the linear layers of a checkpoint in floats are rounded to when it is loaded.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Debug,
    Default,
    Display,
    IntoStaticStr,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Quantize {
    /// Nothing: they stay as they are stored.
    #[default]
    None,
    /// Floats of 8 bits (e4m3), with a scale for each row.
    Fp8,
    /// Integers of 4 bits, with a scale for each 128 columns of a row, or for a row of another length.
    Int4,
}

impl Quantize {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        self.into()
    }
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

/// What happens when a capture fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnCaptureFailure {
    /// Building the model fails.
    Error,
    /// The steps that the graph would have served are launched, and counted.
    #[default]
    Launch,
}

/// The byte that poisoned memory is filled with: NaN in every float type, -1 in every index.
pub(crate) const POISON: u8 = 0xff;
