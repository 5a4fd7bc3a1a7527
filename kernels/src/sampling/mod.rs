//! Sampling: its definitions as custom ops.

mod controlled;
mod cpu;
mod cuda;
mod inputs;
mod reference;

pub use crate::inputs::{
    DETAIL_WORDS, Details, MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS, NO_ID, SampleControls, Sampling,
    fill_token_row, mask_words, token_words,
};
pub use controlled::ControlledSample;

use crate::inputs::StepInput;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// One token id for each row of logits.
///
/// Operands: `logits f32 [R, V]`; per row `temperature f32 [R]` (0 = the largest logit),
/// `top_k i32 [R]` (0 = off), `top_p f32 [R]` (1 = off), `seed i64 [R]`, `position i32 [R]`.
/// Result: `i32 [R]`; [`NO_ID`] of a row in which a logit is NaN or +inf, or none is above -inf, whether
/// it is drawn or not. The draw is keyed by seed and position alone, so that it depends neither on
/// batch mates nor on how the step ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample;

impl Sample {
    /// What graphs call it.
    pub const NAME: &'static str = "piecewise.sample";

    /// What it is told of each step: the parameters of each row.
    pub fn inputs() -> [StepInput; 5] {
        inputs::parameters()
    }
}

impl CustomOpDef for Sample {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], _attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        let [logits, parameters @ ..] = operands else {
            return Err("takes logits and five parameters".to_owned());
        };
        if logits.dtype != DType::F32 || logits.rank() != 2 {
            return Err("logits must be f32 [R, V]".to_owned());
        }
        let rows: &Dim = &logits.shape[0];
        if parameters != parameter_types(rows) {
            return Err(
                "the parameters are temperature f32, top_k i32, top_p f32, seed i64 and position i32, each [R]"
                    .to_owned(),
            );
        }
        Ok(vec![TensorType::new(DType::I32, [rows.clone()])])
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }

    fn evaluate(&self, operands: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        reference::evaluate(operands)
    }
}

/// The types of temperature, top-k, top-p, seed and position.
fn parameter_types(rows: &Dim) -> [TensorType; 5] {
    [DType::F32, DType::I32, DType::F32, DType::I64, DType::I32]
        .map(|dtype| TensorType::new(dtype, [rows.clone()]))
}
