//! What operands say of segments.

use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;

/// Holds starts and lengths against `i32 [S]` of one S.
pub(super) fn check_segments(
    what: &str,
    [starts, lengths]: [&TensorType; 2],
) -> Result<(), String> {
    let fits = |ty: &TensorType| ty.dtype == DType::I32 && ty.rank() == 1;
    if fits(starts) && fits(lengths) && starts.shape == lengths.shape {
        return Ok(());
    }
    Err(format!("the starts and lengths of {what} segments must be i32 [S] of one S"))
}
