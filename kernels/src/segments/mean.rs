//! The mean over the rows of each segment: its definition.

use super::check::check_segments;
use super::reference;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// The mean over the rows of each segment.
///
/// Operands: `x [T, width]`, floats; `starts` and `lengths`, each `i32 [S]`. Result `[S, width]`
/// of x's dtype: summed in f32 from the first row on; zeros for a segment of no rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentMean;

impl SegmentMean {
    /// What graphs call the op.
    pub const NAME: &'static str = "piecewise.segment_mean";
}

impl CustomOpDef for SegmentMean {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        let [x, starts, lengths] = operands else {
            return Err(format!("takes x, starts and lengths, not {} operands", operands.len()));
        };
        if x.rank() != 2 || !x.dtype.is_float() || x.shape[1].as_constant().is_none() {
            return Err("x must be floats [rows, width] of a constant width".to_owned());
        }
        check_segments("the", [starts, lengths])?;
        Ok(vec![TensorType::new(x.dtype, [starts.shape[0].clone(), x.shape[1].clone()])])
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }

    fn splits(&self) -> bool {
        true
    }

    fn evaluate(&self, operands: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        reference::mean(operands)
    }
}
