//! Levels of compilation and modes of graphs.

pub use piecewise_planner::mode::{GraphMode, StepMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// How far a model is compiled.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema, IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CompileLevel {
    /// Unfused: op by op, no regions.
    Eager,
    /// The whole pipeline and all checks, still run unfused.
    Trace,
    /// Regions, launched; no captured graph.
    Compile,
    /// Regions, captured and replayed.
    #[default]
    Piecewise,
}

impl CompileLevel {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
