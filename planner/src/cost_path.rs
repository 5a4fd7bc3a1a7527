//! The ways to run a step that costs tell apart.

use serde::{Deserialize, Serialize};
use strum::Display;

/// A way to run a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CostPath {
    /// Captured pieces are replayed, split ops run between them.
    Piecewise,
    /// One captured graph is replayed, split ops included.
    Full,
    /// Launched one by one at the exact count.
    Launched,
}
