//! Why there is no kernel.

use piecewise_ir::dtype::DType;

/// Why a region or node has no row program: a sentence that says what does not fit and what would.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct LowerError(pub String);

/// Why there is no kernel of rows for a narrow dtype.
pub(super) fn narrow(dtype: DType) -> String {
    format!(
        "no kernel of rows reads or writes {dtype}; cast the weight to another dtype, which is done \
         once at load, or multiply by it with `scaled_matmul`"
    )
}

pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T, LowerError> {
    Err(LowerError(message.into()))
}
