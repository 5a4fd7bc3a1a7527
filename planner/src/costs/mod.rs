//! What a step costs at a size, and what a graph of a size costs to keep and to capture.

mod curve;
mod measured;
mod modelled;

pub use crate::cost_path::CostPath;
pub use curve::MonotoneCurve;
pub use measured::{CostPoint, read_costs, read_costs_file};
pub use modelled::ModelledCosts;

use crate::error::PlannerError;

/// The costs of one way to run a step, each a function of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PathCosts {
    /// How long a step takes, in nanoseconds.
    pub step_ns: MonotoneCurve,
    /// Bytes that a captured graph of this size keeps.
    pub memory_bytes: Option<MonotoneCurve>,
    /// Nanoseconds to capture and instantiate a graph of this size.
    pub capture_ns: Option<MonotoneCurve>,
}

impl PathCosts {
    /// Bytes that a graph keeps and nanoseconds of its capture.
    pub(crate) fn resources(&self) -> [&Option<MonotoneCurve>; 2] {
        [&self.memory_bytes, &self.capture_ns]
    }
}

/// The costs of every way to run a step; a way that is absent was not measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepCosts {
    /// Of replaying pieces, with split ops launched between them.
    pub piecewise: Option<PathCosts>,
    /// Of replaying the whole step as one graph.
    pub full: Option<PathCosts>,
    /// Of launching at the exact count, without padding.
    pub launched: Option<PathCosts>,
    /// Where the costs come from, for reports.
    pub origin: String,
}

impl StepCosts {
    /// The costs of a path.
    ///
    /// # Errors
    /// [`PlannerError::CostsMissing`] when it was not measured.
    pub fn path(&self, path: CostPath) -> Result<&PathCosts, PlannerError> {
        let costs = match path {
            CostPath::Piecewise => &self.piecewise,
            CostPath::Full => &self.full,
            CostPath::Launched => &self.launched,
        };
        costs.as_ref().ok_or(PlannerError::CostsMissing { path })
    }
}
