//! What a line of a log is.

use crate::head::LogHead;

/// A line that could not be used, and why.
#[derive(Debug, derive_more::Display, Clone, PartialEq, Eq, serde::Serialize)]
#[display("line {line}: {reason}")]
pub struct MalformedLine {
    /// One-based number of the line.
    pub line: u64,
    /// Why it could not be used.
    pub reason: String,
}

/// What a line that can be used says.
pub(crate) enum Line {
    Step,
    Idle,
    Head(Box<LogHead>),
}
