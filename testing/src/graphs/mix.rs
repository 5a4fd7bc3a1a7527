//! A custom op that mixes rows and mutates a state: what a split op looks like without attention.

use piecewise_ir::custom::{Attr, Attrs, CustomOpDef, OpDefs};
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use std::sync::Arc;

/// `test.mix x, mut state, slots {scale}`: `x` is `[T, w]`, the state `[n, w]` of the same float
/// dtype, the slots `i32[T]`; the result is like `x`. In order of the rows `i`
///
/// ```text
/// y[i] = scale * (x[i] + mean(x[0..=i]) + state[slots[i]])
/// state[slots[i]] = y[i]
/// ```
///
/// where a slot outside the state reads 0 and writes nowhere. Slots are distinct but for -1, to which
/// those that an input gives are held. Rows
/// look back only, so padding rows at the end reach no real one.
#[derive(Clone, Copy, Debug)]
pub struct MixOp;

impl MixOp {
    /// What graphs call the op.
    pub const NAME: &'static str = "test.mix";
}

/// The definitions that random graphs use: [`MixOp`].
pub fn mix_ops() -> OpDefs {
    let mut ops = OpDefs::new();
    ops.register(Arc::new(MixOp));
    ops
}

fn scale(attrs: &Attrs) -> Result<f64, String> {
    match attrs.get("scale") {
        Some(Attr::Float(scale)) => Ok(*scale),
        other => Err(format!("attribute `scale` must be a float, not {other:?}")),
    }
}

impl CustomOpDef for MixOp {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        scale(attrs)?;
        let [x, state, slots] = operands else {
            return Err(format!("takes x, state and slots, not {} operands", operands.len()));
        };
        if x.rank() != 2 || state.rank() != 2 || x.row() != state.row() || !x.dtype.is_float() {
            return Err("x and state must be matrices of one float dtype and width".to_owned());
        }
        if slots.dtype != DType::I32 || slots.shape[..] != x.shape[..1] {
            return Err("slots must be one i32 for each row of x".to_owned());
        }
        Ok(vec![x.clone()])
    }

    fn mutates(&self) -> Vec<usize> {
        vec![1]
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Mixed
    }

    fn absorbs(&self) -> Vec<usize> {
        vec![0, 3]
    }

    fn scatters(&self) -> Vec<(usize, usize)> {
        vec![(1, 2)]
    }

    fn evaluate(
        &self,
        operands: &[Array],
        attrs: &Attrs,
        _counts: &[u64],
    ) -> Result<Vec<Array>, String> {
        let scale = scale(attrs)?;
        let [x, state, slots] = operands else {
            return Err(format!("takes 3 operands, not {}", operands.len()));
        };
        let width = x.row_len();
        let (mut y, mut state) = (x.clone(), state.clone());
        let mut sums = vec![0.0; width];
        for (i, &slot) in slots.data.iter().enumerate() {
            let in_state = slot >= 0.0 && slot < state.shape[0] as f64;
            for (j, sum) in sums.iter_mut().enumerate() {
                let at = i * width + j;
                *sum += x.data[at];
                let mean = *sum / (i + 1) as f64;
                let kept = in_state.then(|| &mut state.data[slot as usize * width + j]);
                y.data[at] = scale * (x.data[at] + mean + kept.as_deref().copied().unwrap_or(0.0));
                if let Some(kept) = kept {
                    *kept = y.data[at];
                }
            }
        }
        Ok(vec![y, state])
    }
}
