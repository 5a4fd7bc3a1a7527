//! Primitive nodes outside regions as row programs of one statement.

use super::LowerError;
use super::build::{Builder, fail, static_dims};
use super::row_program::RowProgram;
use super::view::View;
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::Symbol;
use piecewise_ir::op::{Op, RowTreatment, row_treatment};
use piecewise_ir::region::ParamMode;
use piecewise_ir::types::TensorType;

/// Lowers one primitive. `states[i]` says whether operand `i` is a state.
///
/// Its rows are those of the outermost symbol of the result (of the slots, for a scatter); where
/// that axis is static, the whole op is one row.
///
/// # Errors
/// When rows of a symbol mix (a reduction, a concat, a permutation over it), which no row program
/// can do, or a type has a symbol further in.
pub fn lower_node(
    op: &Op,
    operands: &[TensorType],
    states: &[bool],
    results: &[TensorType],
) -> Result<RowProgram, LowerError> {
    if states.len() != operands.len() {
        return fail("as many operands as state flags are needed");
    }
    if let Err(error) = piecewise_ir::op::check_types(op, operands, results) {
        return fail(error.to_string());
    }
    let over = match op {
        Op::Scatter => operands[1].outer_symbol(),
        _ => results.first().and_then(TensorType::outer_symbol),
    };
    if let Some(symbol) = over
        && !matches!(op, Op::Gather | Op::Iota { .. })
        && row_treatment(op, operands, results, symbol) == RowTreatment::Mixed
    {
        return fail(format!(
            "`{}` mixes rows of a symbolic axis; make it a custom op",
            op.mnemonic()
        ));
    }
    let mut builder = Builder::new(over);
    let mut views = Vec::new();
    for (i, (ty, &state)) in operands.iter().zip(states).enumerate() {
        let mode = match op {
            Op::Scatter if i == 0 => ParamMode::Mut,
            Op::Gather if i == 0 => ParamMode::Whole,
            // A broadcast adds the rows.
            Op::Broadcast if ty.outer_symbol() != over || over.is_none() => ParamMode::Whole,
            _ if over.is_some() && ty.outer_symbol() == over => ParamMode::Row,
            _ => ParamMode::Whole,
        };
        let seen = if mode == ParamMode::Row { ty.row() } else { ty.clone() };
        views.push(builder.param(mode, &seen, state)?);
    }
    let rows: Vec<TensorType> = match over {
        Some(_) => results.iter().map(TensorType::row).collect(),
        None => results.to_vec(),
    };
    let outputs = match over {
        Some(symbol) => row_outputs(&mut builder, op, operands, results, symbol, &views, &rows)?,
        None => builder.op(op, &views, &rows)?,
    };
    builder.finish(&outputs)
}

/// The op on one row: axes move in by one, and what only touches the outer axis vanishes.
fn row_outputs(
    builder: &mut Builder,
    op: &Op,
    operands: &[TensorType],
    results: &[TensorType],
    symbol: Symbol,
    views: &[View],
    rows: &[TensorType],
) -> Result<Vec<View>, LowerError> {
    let inner = |axis: &usize| match axis.checked_sub(1) {
        Some(axis) => Ok(axis),
        None => fail(format!("`{}` works along a symbolic axis", op.mnemonic())),
    };
    let shifted = match op {
        Op::Reduce { op, axes } => {
            Op::Reduce { op: *op, axes: axes.iter().map(inner).collect::<Result<_, _>>()? }
        }
        Op::ArgMax { axis } => Op::ArgMax { axis: inner(axis)? },
        Op::TopK { axis } => Op::TopK { axis: inner(axis)? },
        Op::Slice { axis, start } => Op::Slice { axis: inner(axis)?, start: *start },
        Op::Concat { axis } => Op::Concat { axis: inner(axis)? },
        Op::Permute { perm } => {
            Op::Permute { perm: perm[1..].iter().map(inner).collect::<Result<_, _>>()? }
        }
        Op::Iota { axis: 0 } => {
            let shape = static_dims(&rows[0])?;
            let number = builder.row_number(rows[0].dtype);
            return Ok(vec![View { dims: Vec::new(), ..number }.broadcast(&shape)]);
        }
        Op::Iota { axis } => Op::Iota { axis: inner(axis)? },
        Op::Broadcast
            if operands[0].rank() == results[0].rank()
                && operands[0].outer_symbol() != Some(symbol) =>
        {
            // The outer axis has extent 1, which every row sees.
            if operands[0].shape[0] != Dim::constant(1) {
                return fail("a broadcast of a static extent to a symbolic one");
            }
            let mut view = views[0].clone();
            view.dims.remove(0);
            return builder.op(op, &[view], rows);
        }
        other => other.clone(),
    };
    builder.op(&shifted, views, rows)
}
