//! Segments: runs of packed rows that belong together, such as the tokens of a text or the patches
//! of an image. Attention and means within them, as custom ops.
//!
//! Where segments begin and how long they are is data of the step, so that nothing about lengths
//! is compiled or captured. A segment of no rows is allowed anywhere.

mod attention;
mod cpu;
mod cuda;
mod mean;
mod reference;

pub use attention::SegmentAttention;
pub use mean::SegmentMean;

use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;

/// Holds starts and lengths against `i32 [S]` of one S.
fn check_segments(what: &str, [starts, lengths]: [&TensorType; 2]) -> Result<(), String> {
    let fits = |ty: &TensorType| ty.dtype == DType::I32 && ty.rank() == 1;
    if fits(starts) && fits(lengths) && starts.shape == lengths.shape {
        return Ok(());
    }
    Err(format!("the starts and lengths of {what} segments must be i32 [S] of one S"))
}
