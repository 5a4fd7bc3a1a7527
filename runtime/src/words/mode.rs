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
    /// The levels, from that which does least.
    pub const ALL: [Self; 4] = [Self::Eager, Self::Trace, Self::Compile, Self::Piecewise];

    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl std::str::FromStr for CompileLevel {
    type Err = String;

    /// Reads a name in any case, or the number that vLLM has for as much: 0 for eager to 3 for
    /// piecewise.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_called = |(number, level): &(usize, Self)| {
            level.name().eq_ignore_ascii_case(text) || number.to_string() == text
        };
        let found = Self::ALL.into_iter().enumerate().find(is_called);
        found.map(|(_, level)| level).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown level `{text}`; one of {names}, or 0 to 3 for them in this order")
        })
    }
}
