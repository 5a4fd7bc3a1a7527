//! Why an op can't run.

/// Why an op could not run: a sentence that says which operand or attribute and what would fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("custom op `{op}`: {message}")]
pub struct OpError {
    /// The name that the op is registered under.
    pub op: String,
    /// What is wrong and what would fit.
    pub message: String,
}

impl OpError {
    /// The error of `op`, for this reason.
    pub fn new(op: impl Into<String>, message: impl Into<String>) -> Self {
        Self { op: op.into(), message: message.into() }
    }
}
