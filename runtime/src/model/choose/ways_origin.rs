//! Whether the ways of a piece were measured, and when.

use serde::Serialize;

/// Where a choice comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaysOrigin {
    /// There is nothing to choose, or nobody asked.
    #[default]
    First,
    /// Nothing is known: the first ways.
    Unmeasured,
    /// The store had a record.
    Remembered,
    /// It was measured at this start.
    Measured,
}
