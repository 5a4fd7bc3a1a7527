//! Why there is no kernel.

/// Why a region or node has no row program: a sentence that says what does not fit and what would.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct LowerError(pub String);

pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T, LowerError> {
    Err(LowerError(message.into()))
}
