//! Each row of a sequence beside the rows before it, which may be of earlier steps: what a short
//! convolution reads.

mod cpu;
mod cuda;

pub use cuda::causal_window_kernels;

use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// The last rows of each sequence up to each of its rows.
///
/// Operands: `x [T, width]`, floats; a state `[L, width, rows - 1]` of x's dtype, a slot of which holds the
/// last `rows - 1` rows of its sequence, the latest last, and zeros for those before its first; `slots`,
/// `starts` and `lengths`, each `i32 [S]`: the slot of each sequence, its first row in x and how many it
/// brings, one sequence after the other. Result: `[T, width, rows]` of x's dtype, whose element `[t, c, j]`
/// is column c of the row that is `rows - 1 - j` before row t in its sequence. All is copied, to the bit.
/// The slots then hold what the next step needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct CausalWindow;

/// The positions of operands, and of the result.
const X: usize = 0;
const STATE: usize = 1;
const SLOTS: usize = 2;
const STARTS: usize = 3;
const LENGTHS: usize = 4;
const OUT: usize = 5;

impl CausalWindow {
    /// What graphs call the op.
    pub const NAME: &'static str = "piecewise.causal_window";
}

impl CustomOpDef for CausalWindow {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        let [x, state, slots, starts, lengths] = operands else {
            return Err(format!(
                "takes x, a state, slots, starts and lengths, not {} operands",
                operands.len()
            ));
        };
        let constant = |ty: &TensorType, axis: usize| ty.shape[axis].as_constant();
        if x.rank() != 2 || !x.dtype.is_float() || x.dtype.is_narrow() || constant(x, 1).is_none() {
            return Err("x must be floats [rows, width] of a constant width".to_owned());
        }
        let kept =
            if state.rank() == 3 { constant(state, 2).filter(|kept| *kept > 0) } else { None };
        let Some(kept) = kept.filter(|_| state.dtype == x.dtype && state.shape[1] == x.shape[1])
        else {
            return Err(
                "the state must be [slots, width, rows - 1] of x's dtype and width, for at least 2 rows"
                    .to_owned(),
            );
        };
        let fits =
            |ty: &TensorType| ty.dtype == DType::I32 && ty.rank() == 1 && ty.shape == slots.shape;
        if ![slots, starts, lengths].into_iter().all(fits) {
            return Err("slots, starts and lengths must be i32 [S] of one S".to_owned());
        }
        let shape = [x.shape[0].clone(), x.shape[1].clone(), (kept + 1).into()];
        Ok(vec![TensorType::new(x.dtype, shape)])
    }

    fn mutates(&self) -> Vec<usize> {
        vec![STATE]
    }

    fn scatters(&self) -> Vec<(usize, usize)> {
        vec![(STATE, SLOTS)]
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }

    fn evaluate(&self, operands: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        let [x, state, slots, starts, lengths] = operands else {
            return Err(format!("takes 5 operands, not {}", operands.len()));
        };
        let (width, kept) = (x.shape[1], state.shape[2]);
        let mut out = Array::zeros(x.dtype, vec![x.shape[0], width, kept + 1]);
        let mut after = state.clone();
        for ((&slot, &start), &length) in slots.data.iter().zip(&starts.data).zip(&lengths.data) {
            let (slot, start, length) = (slot as usize, start as usize, length as usize);
            if slot >= state.shape[0] || start + length > x.shape[0] {
                return Err(format!(
                    "slot {slot} of {} and {length} rows from row {start} on, of {}",
                    state.shape[0], x.shape[0]
                ));
            }
            for column in 0..width {
                let before = &state.data[(slot * width + column) * kept..][..kept];
                let rows = (start..start + length).map(|row| x.data[row * width + column]);
                let all: Vec<f64> = before.iter().copied().chain(rows).collect();
                for (i, window) in all.windows(kept + 1).enumerate() {
                    let at = ((start + i) * width + column) * (kept + 1);
                    out.data[at..][..kept + 1].copy_from_slice(window);
                }
                let after = &mut after.data[(slot * width + column) * kept..][..kept];
                after.copy_from_slice(&all[length..]);
            }
        }
        Ok(vec![out, after])
    }
}
