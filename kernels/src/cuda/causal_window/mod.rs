//! [`crate::causal_window`] on CUDA.

use super::text::{defines, storage};
use crate::lower::{LowerError, fail};
use crate::op::cuda::{GridAxis, LaunchRecipe, OpKernels, Param};
use piecewise_ir::entity::Entity;
use piecewise_ir::types::TensorType;

/// Threads of a block: a column each.
const COLUMNS: u64 = 128;

/// As [`causal_window_kernels`](crate::causal_window::causal_window_kernels) says, of operands that fit the
/// op.
pub(crate) fn causal_window_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    let [x, state, slots, ..] = operands else {
        return fail("windows of rows take five operands");
    };
    let Some(sequences) = slots.outer_symbol() else {
        return fail("sequences that no symbol counts; shape their slots by a symbol");
    };
    let fixed = |ty: &TensorType, axis: usize| ty.shape[axis].as_constant().unwrap_or(0);
    let width = fixed(x, 1);
    let known = defines([("WIDTH", width), ("KEPT", fixed(state, 2)), ("COLUMNS", COLUMNS)]);
    let source = format!(
        "#include \"prelude.cuh\"\n\ntypedef {} X;\n{known}{}",
        storage(x.dtype),
        include_str!("causal_window.cu")
    );
    let mut params: Vec<Param> = (0..6).map(Param::Arg).collect();
    params.extend([
        Param::Counts,
        Param::size(x.shape[0].clone()),
        Param::size(state.shape[0].clone()),
        Param::size(slots.shape[0].clone()),
        Param::size(sequences.index() as u64),
    ]);
    let launch = |entry, units| {
        let grid = [units, GridAxis::of(width, COLUMNS), GridAxis::one()];
        LaunchRecipe::own(source.clone(), entry, grid, COLUMNS, params.clone())
    };
    let rows = GridAxis::of(x.shape[0].clone(), 1);
    let sequences = GridAxis::of(slots.shape[0].clone(), 1);
    Ok(OpKernels::new([launch("causal_window", rows), launch("causal_window_slots", sequences)]))
}
