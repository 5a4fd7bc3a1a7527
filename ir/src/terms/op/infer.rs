//! Type rules: what result types an op may have for its operand types.

use super::{Op, ReduceOp};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::types::{Shape, TensorType};

/// Why an op does not fit its types: a sentence that says which operand and what would fit.
/// Types in it are described without the graph's symbol names.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

fn fail<T>(message: impl Into<String>) -> Result<T, TypeError> {
    Err(TypeError(message.into()))
}

fn ensure(holds: bool, rule: &str) -> Result<(), TypeError> {
    if holds { Ok(()) } else { fail(rule) }
}

/// How many operands and results an op has; `None` for those that say it themselves.
fn signature(op: &Op) -> (Option<usize>, Option<usize>) {
    match op {
        Op::Iota { .. } | Op::Literal(_) => (Some(0), Some(1)),
        Op::Unary(_) | Op::Cast | Op::Reduce { .. } | Op::ArgMax { .. } => (Some(1), Some(1)),
        Op::Broadcast | Op::Reshape | Op::Permute { .. } | Op::Slice { .. } => (Some(1), Some(1)),
        Op::TopK { .. } => (Some(1), Some(2)),
        Op::Binary(_) | Op::Compare(_) | Op::Gather | Op::MatMul { .. } => (Some(2), Some(1)),
        Op::Select => (Some(3), Some(1)),
        Op::Scatter => (Some(3), Some(0)),
        Op::Concat { .. } | Op::ScaledMatMul { .. } => (None, Some(1)),
        Op::Region(_) | Op::Custom(_) => (None, None),
    }
}

fn expect_operands(op: &Op, operands: &[TensorType]) -> Result<(), TypeError> {
    match signature(op).0 {
        Some(n) if n != operands.len() => {
            fail(format!("`{}` takes {n} operand(s), not {}", op.mnemonic(), operands.len()))
        }
        _ => Ok(()),
    }
}

fn same_type(op: &Op, a: &TensorType, b: &TensorType) -> Result<(), TypeError> {
    if a.dtype != b.dtype {
        return fail(format!(
            "`{}` needs operands of one dtype, not {} and {}; insert a cast",
            op.mnemonic(),
            a.dtype,
            b.dtype
        ));
    }
    if a.shape != b.shape {
        return fail(format!(
            "`{}` needs operands of one shape; broadcast the smaller one",
            op.mnemonic()
        ));
    }
    Ok(())
}

fn axis_in(op: &Op, axis: usize, rank: usize) -> Result<(), TypeError> {
    if axis < rank {
        return Ok(());
    }
    fail(format!("`{}` axis {axis} is outside rank {rank}", op.mnemonic()))
}

/// The result type of an op whose operands alone determine it and which has one result; `None`
/// for ops whose result type says more than the operands (casts, broadcasts, reshapes, slices,
/// products, iota, literals, top-k, regions, custom ops) or that have no result (scatter).
///
/// # Errors
/// When the operands do not fit the op.
pub fn infer_type(op: &Op, operands: &[TensorType]) -> Result<Option<TensorType>, TypeError> {
    expect_operands(op, operands)?;
    let ty = match op {
        Op::Unary(unary) => {
            if !unary.takes(operands[0].dtype) {
                return fail(format!("`{}` does not take {}", op.mnemonic(), operands[0].dtype));
            }
            operands[0].clone()
        }
        Op::Binary(binary) => {
            same_type(op, &operands[0], &operands[1])?;
            if !binary.takes(operands[0].dtype) {
                return fail(format!("`{}` does not take {}", op.mnemonic(), operands[0].dtype));
            }
            operands[0].clone()
        }
        Op::Compare(_) => {
            same_type(op, &operands[0], &operands[1])?;
            operands[0].with_dtype(DType::Bool)
        }
        Op::Select => {
            same_type(op, &operands[1], &operands[2])?;
            ensure(
                operands[0] == operands[1].with_dtype(DType::Bool),
                "`select` needs a bool condition of the operands' shape",
            )?;
            operands[1].clone()
        }
        Op::Reduce { op: reduce, axes } => reduced(op, *reduce, axes, &operands[0])?,
        Op::ArgMax { axis } => {
            axis_in(op, *axis, operands[0].rank())?;
            ensure(operands[0].dtype != DType::Bool, "`argmax` does not take bool")?;
            let mut ty = operands[0].with_dtype(DType::I32);
            ty.shape.remove(*axis);
            ty
        }
        Op::Permute { perm } => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted != (0..operands[0].rank()).collect::<Vec<_>>() {
                return fail(format!(
                    "`permute` by {perm:?} is no permutation of the {} axes",
                    operands[0].rank()
                ));
            }
            let shape = perm.iter().map(|&axis| operands[0].shape[axis].clone()).collect();
            TensorType { dtype: operands[0].dtype, shape }
        }
        Op::Concat { axis } => concatenated(op, *axis, operands)?,
        Op::Gather => {
            let (table, indices) = (&operands[0], &operands[1]);
            ensure(table.rank() > 0, "`gather` needs a table of at least one axis")?;
            if !indices.dtype.is_index() {
                return fail(format!("`gather` needs i32 or i64 indices, not {}", indices.dtype));
            }
            let shape = indices.shape.iter().chain(table.shape.iter().skip(1)).cloned().collect();
            TensorType { dtype: table.dtype, shape }
        }
        Op::Cast
        | Op::TopK { .. }
        | Op::Broadcast
        | Op::Reshape
        | Op::Slice { .. }
        | Op::Scatter
        | Op::MatMul { .. }
        | Op::ScaledMatMul { .. }
        | Op::Iota { .. }
        | Op::Literal(_)
        | Op::Region(_)
        | Op::Custom(_) => return Ok(None),
    };
    Ok(Some(ty))
}

fn reduced(
    op: &Op,
    reduce: ReduceOp,
    axes: &[usize],
    operand: &TensorType,
) -> Result<TensorType, TypeError> {
    if axes.is_empty() || !axes.is_sorted_by(|a, b| a < b) {
        return fail(format!("`{}` needs ascending, distinct axes", op.mnemonic()));
    }
    if operand.dtype == DType::Bool || (reduce == ReduceOp::Mean && !operand.dtype.is_float()) {
        return fail(format!("`{}` does not take {}", op.mnemonic(), operand.dtype));
    }
    let mut ty = operand.clone();
    for &axis in axes {
        axis_in(op, axis, operand.rank())?;
        ty.shape[axis] = Dim::constant(1);
    }
    Ok(ty)
}

fn concatenated(op: &Op, axis: usize, operands: &[TensorType]) -> Result<TensorType, TypeError> {
    let Some(first) = operands.first() else { return fail("`concat` needs an operand") };
    axis_in(op, axis, first.rank())?;
    let mut sum = first.clone();
    for (i, ty) in operands.iter().enumerate().skip(1) {
        let fits = ty.dtype == first.dtype
            && ty.rank() == first.rank()
            && (0..first.rank()).all(|a| a == axis || ty.shape[a] == first.shape[a]);
        if !fits {
            return fail(format!("`concat` operand {i} differs from operand 0 beyond axis {axis}"));
        }
        sum.shape[axis] = sum.shape[axis].plus(&ty.shape[axis]);
    }
    Ok(sum)
}

/// Checks the result types of an op against its operand types. Regions and custom ops are
/// accepted as they are: the verifier checks a region's body, and a custom op's definition
/// checks its call.
///
/// # Errors
/// When operands or results do not fit the op.
pub fn check_types(
    op: &Op,
    operands: &[TensorType],
    results: &[TensorType],
) -> Result<(), TypeError> {
    let Some(expected) = signature(op).1 else { return Ok(()) };
    if results.len() != expected {
        return fail(format!(
            "`{}` has {expected} result(s), not {}",
            op.mnemonic(),
            results.len()
        ));
    }
    if let Some(inferred) = infer_type(op, operands)? {
        if results[0] != inferred {
            return fail(format!(
                "the result type of `{}` does not follow from its operands",
                op.mnemonic()
            ));
        }
        return Ok(());
    }
    match op {
        Op::Cast => ensure(operands[0].shape == results[0].shape, "`cast` keeps the shape"),
        Op::Broadcast => check_broadcast(&operands[0], &results[0]),
        Op::Reshape => check_reshape(&operands[0], &results[0]),
        Op::Slice { axis, start } => check_slice(op, *axis, *start, &operands[0], &results[0]),
        Op::Scatter => check_scatter(&operands[0], &operands[1], &operands[2]),
        Op::MatMul { transpose_lhs, transpose_rhs } => {
            check_matmul(*transpose_lhs, *transpose_rhs, &operands[0], &operands[1], &results[0])
        }
        Op::ScaledMatMul { block } => check_scaled(*block, operands, &results[0]),
        Op::TopK { axis } => check_top_k(op, *axis, &operands[0], results),
        Op::Iota { axis } => axis_in(op, *axis, results[0].rank()),
        Op::Literal(literal) => {
            if !literal.fits(&results[0]) {
                return fail(format!(
                    "`literal` has {} elements of {}, which is not its type",
                    literal.len(),
                    literal.dtype()
                ));
            }
            Ok(())
        }
        // Their operands say it, or they bring their own signature.
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Reduce { .. }
        | Op::ArgMax { .. }
        | Op::Permute { .. }
        | Op::Concat { .. }
        | Op::Gather
        | Op::Region(_)
        | Op::Custom(_) => Ok(()),
    }
}

fn check_broadcast(from: &TensorType, to: &TensorType) -> Result<(), TypeError> {
    ensure(from.dtype == to.dtype, "`broadcast` keeps the dtype")?;
    let Some(outer) = to.rank().checked_sub(from.rank()) else {
        return fail("`broadcast` can't drop axes");
    };
    for (axis, dim) in from.shape.iter().enumerate() {
        if *dim != to.shape[outer + axis] && dim.as_constant() != Some(1) {
            return fail(format!("`broadcast` operand axis {axis} is neither 1 nor the result's"));
        }
    }
    Ok(())
}

/// The product of dimensions as a constant times a sorted list of symbolic dimensions.
fn factors(shape: &Shape) -> (u64, Vec<Dim>) {
    let mut constant = 1u64;
    let mut symbolic = Vec::new();
    for dim in shape {
        match dim.as_constant() {
            Some(c) => constant = constant.saturating_mul(c),
            None => {
                // c * symbol counts as the constant c and the symbol.
                let common = match dim.terms() {
                    &[(_, c)] if dim.constant_part() == 0 && c > 0 => c,
                    _ => 1,
                };
                constant = constant.saturating_mul(common as u64);
                symbolic.push(if common == 1 {
                    dim.clone()
                } else {
                    Dim::affine(0, [(dim.terms()[0].0, 1)])
                });
            }
        }
    }
    symbolic.sort();
    (constant, symbolic)
}

fn check_reshape(from: &TensorType, to: &TensorType) -> Result<(), TypeError> {
    ensure(from.dtype == to.dtype, "`reshape` keeps the dtype")?;
    ensure(factors(&from.shape) == factors(&to.shape), "`reshape` keeps the number of elements")
}

fn check_slice(
    op: &Op,
    axis: usize,
    start: u64,
    from: &TensorType,
    to: &TensorType,
) -> Result<(), TypeError> {
    axis_in(op, axis, from.rank())?;
    if from.dtype != to.dtype
        || from.rank() != to.rank()
        || (0..from.rank()).any(|a| a != axis && from.shape[a] != to.shape[a])
    {
        return fail(format!("`slice` changes nothing but axis {axis}"));
    }
    let (Some(extent), Some(kept)) = (from.shape[axis].as_constant(), to.shape[axis].as_constant())
    else {
        return fail("`slice` needs an axis of static extent");
    };
    if start.checked_add(kept).is_none_or(|end| end > extent) || kept == 0 {
        return fail(format!("`slice` {start}..+{kept} is outside an extent of {extent}"));
    }
    Ok(())
}

fn check_scatter(
    state: &TensorType,
    slots: &TensorType,
    rows: &TensorType,
) -> Result<(), TypeError> {
    ensure(state.rank() > 0, "`scatter` needs a state of at least one axis")?;
    if !slots.dtype.is_index() {
        return fail(format!("`scatter` needs i32 or i64 slots, not {}", slots.dtype));
    }
    let shape: Shape = slots.shape.iter().chain(state.shape.iter().skip(1)).cloned().collect();
    let fits = rows.dtype == state.dtype && rows.shape == shape;
    ensure(fits, "`scatter` rows must have the slots' axes, then a state row's, in its dtype")
}

fn check_matmul(
    transpose_lhs: bool,
    transpose_rhs: bool,
    lhs: &TensorType,
    rhs: &TensorType,
    result: &TensorType,
) -> Result<(), TypeError> {
    ensure(lhs.rank() >= 2 && rhs.rank() >= 2, "`matmul` needs operands of at least two axes")?;
    let floats = [lhs, rhs, result].iter().all(|ty| ty.dtype.is_float());
    ensure(floats, "`matmul` takes and gives floats")?;
    let (l, r) = (lhs.rank(), rhs.rank());
    let (m, lk) = if transpose_lhs { (l - 1, l - 2) } else { (l - 2, l - 1) };
    let (rk, n) = if transpose_rhs { (r - 1, r - 2) } else { (r - 2, r - 1) };
    ensure(lhs.shape[lk] == rhs.shape[rk], "`matmul` inner dimensions differ")?;
    let same_batch = r == 2 || (r == l && lhs.shape[..l - 2] == rhs.shape[..r - 2]);
    ensure(same_batch, "`matmul` batch axes differ")?;
    let expected: Shape =
        lhs.shape[..l - 2].iter().chain([&lhs.shape[m], &rhs.shape[n]]).cloned().collect();
    ensure(result.shape == expected, "`matmul` result must be [..batch, m, n]")
}

fn check_scaled(
    block: [u64; 2],
    operands: &[TensorType],
    result: &TensorType,
) -> Result<(), TypeError> {
    let (x, w, scales, zeros) = match operands {
        [x, w, scales] => (x, w, scales, None),
        [x, w, scales, zeros] => (x, w, scales, Some(zeros)),
        _ => {
            let n = operands.len();
            return fail(format!("`scaled_matmul` takes rows, codes, scales and zeros, not {n}"));
        }
    };
    let computes = |ty: &TensorType| ty.dtype.is_float() && !ty.dtype.is_narrow();
    let floats = [x, scales, result].into_iter().all(computes);
    ensure(floats, "`scaled_matmul` takes rows and scales of f32, f16 or bf16, and gives such")?;
    ensure(
        w.dtype.is_narrow(),
        "`scaled_matmul` takes codes of a narrow dtype, else use `matmul`",
    )?;
    let Some(&[n, k]) = w.static_shape().as_deref().and_then(|dims| dims.as_array()) else {
        return fail("`scaled_matmul` takes codes `[n, k]` of static extents");
    };
    ensure(!block.contains(&0), "`scaled_matmul` blocks have at least one row and one column")?;
    let blocks = [n.div_ceil(block[0]), k.div_ceil(block[1])];
    if scales.static_shape().as_deref() != Some(&blocks) {
        return fail(format!("`scaled_matmul` needs scales {blocks:?}, one for each block"));
    }
    if let Some(zeros) = zeros {
        let fits = zeros.dtype == w.dtype && zeros.shape == scales.shape && w.dtype.is_int();
        ensure(
            fits,
            "`scaled_matmul` zeros are integers of the codes' dtype, in the scales' shape",
        )?;
    }
    ensure(x.rank() >= 2, "`scaled_matmul` needs rows of at least two axes")?;
    let inner = x.rank() - 1;
    ensure(x.shape[inner] == w.shape[1], "`scaled_matmul` inner dimensions differ")?;
    let expected: Shape = x.shape[..inner].iter().chain([&w.shape[0]]).cloned().collect();
    ensure(result.shape == expected, "`scaled_matmul` result must be [.., m, n]")
}

/// That only ops which know narrow dtypes have them: products with scales, gathers, casts, and slices
/// and concatenations of whole lines. What a region computes is asked of its body.
///
/// # Errors
/// When another operand or result is narrow.
pub fn check_narrow(
    op: &Op,
    operands: &[TensorType],
    results: &[TensorType],
) -> Result<(), TypeError> {
    let is_whole = |axis: usize, ty: &TensorType| axis + 1 < ty.rank();
    let takes = |position: usize, ty: &TensorType| match op {
        Op::ScaledMatMul { .. } => position == 1 || position == 3,
        Op::Gather => position == 0 && ty.rank() > 1,
        Op::Slice { axis, .. } | Op::Concat { axis } => is_whole(*axis, ty),
        Op::Cast | Op::Region(_) => true,
        _ => false,
    };
    let narrow = |ty: &&TensorType| ty.dtype.is_narrow();
    let refused =
        operands.iter().enumerate().find(|(i, ty)| ty.dtype.is_narrow() && !takes(*i, ty));
    let gives = !matches!(op, Op::ScaledMatMul { .. });
    let made = results.iter().find(narrow).filter(|ty| !(gives && takes(0, ty)));
    match refused.map(|(_, ty)| ty).or(made) {
        None => Ok(()),
        Some(ty) => fail(format!(
            "`{}` does not take {} here, a form that weights are kept in: multiply by it with \
             `scaled_matmul`, gather, slice or join whole lines of it, or cast it first",
            op.mnemonic(),
            ty.dtype
        )),
    }
}

fn check_top_k(
    op: &Op,
    axis: usize,
    operand: &TensorType,
    results: &[TensorType],
) -> Result<(), TypeError> {
    axis_in(op, axis, operand.rank())?;
    ensure(operand.dtype != DType::Bool, "`top_k` does not take bool")?;
    let mut expected = operand.clone();
    let k = results[0].shape.get(axis).and_then(Dim::as_constant);
    match (k, operand.shape[axis].as_constant()) {
        (Some(k), Some(extent)) if k >= 1 && k <= extent => expected.shape[axis] = k.into(),
        _ => return fail("`top_k` needs a static extent and 1 to that many results"),
    }
    let fits = results[0] == expected && results[1] == expected.with_dtype(DType::I32);
    ensure(fits, "`top_k` gives values of the operand's dtype and i32 indices, of one shape")
}
