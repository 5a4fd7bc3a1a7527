//! The op is what it declares: on the CPU, and on a GPU where there is one.

use outside::gated::GatedLinearAttention;
use piecewise::ir::eval::Array;
use piecewise::kernels::op::{self, OpCase, OpCheckError};
use piecewise::prelude::*;

/// What the op computes, in f64.
fn exact(operands: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
    let [q, k, v, gate, state, spans] = operands else { return Err("wants six operands".into()) };
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let (mut out, mut state) = (Array::zeros(q.dtype, q.shape.clone()), state.clone());
    for span in spans.data.chunks_exact(3) {
        let (slot, first, rows) = (span[0] as usize, span[1] as usize, span[2] as usize);
        for (at, head) in (first * heads..(first + rows) * heads).map(|at| (at * dim, at % heads)) {
            for (i, column) in (0..dim * dim).map(|n| (n / dim, n % dim)) {
                let s = &mut state.data[((slot * heads + head) * dim + i) * dim + column];
                *s = gate.data[at + i] * *s + k.data[at + i] * v.data[at + column];
                out.data[at + column] += q.data[at + i] * *s;
            }
        }
    }
    Ok(vec![out, state])
}

#[test]
fn the_op_is_what_it_declares() -> Result<(), OpCheckError> {
    let (heads, dim) = (2, 8);
    let case = OpCase::of(&GatedLinearAttention);
    let case = (0..4).fold(case, |case, _| case.rows(DType::F32, [heads, dim]));
    let case = case.slot_state(DType::F32, [heads, dim, dim]).input(&GatedLinearAttention::spans());
    let report = op::check(&GatedLinearAttention::registry(), &case.reference(exact))?;
    assert!(report.done.contains(&"cpu: reference".to_owned()), "{report:?}");
    Ok(())
}
