//! Levels of compilation and modes of graphs.

pub use piecewise_planner::mode::{GraphMode, StepMode};

/// How far a model is compiled.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Level {
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

impl Level {
    /// Its name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Trace => "trace",
            Self::Compile => "compile",
            Self::Piecewise => "piecewise",
        }
    }
}
