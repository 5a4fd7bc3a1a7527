//! The rules of canonicalization: equal computations get one form, and what changes nothing goes. Each
//! keeps every bit of the result, signed zeros and NaNs included.

use crate::rewrite::{New, Rule, Site};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::literal::Scalar;
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};

/// In the order in which they are tried.
pub(crate) const CANONICAL: [Rule; 17] = [
    Rule::new(
        "no-op",
        |op| matches!(op, Op::Cast | Op::Reshape | Op::Broadcast | Op::Slice { .. }),
        |site| (site.operand_ty(0) == site.ty).then(|| New::Value(site.operands[0])),
    ),
    Rule::new(
        "no-op",
        |op| matches!(op, Op::Concat { .. }),
        |site| (site.operands.len() == 1).then(|| New::Value(site.operands[0])),
    ),
    Rule::new(
        "no-op",
        |op| matches!(op, Op::Permute { perm } if perm.is_sorted()),
        |site| Some(New::Value(site.operands[0])),
    ),
    Rule::new("cast of widening cast", |op| matches!(op, Op::Cast), cast_of_cast),
    Rule::new(
        "reshape of reshape",
        |op| matches!(op, Op::Reshape),
        |site| Some(site.node(Op::Reshape, [site.through(0, |op| matches!(op, Op::Reshape))?])),
    ),
    Rule::new(
        "broadcast of broadcast",
        |op| matches!(op, Op::Broadcast),
        |site| Some(site.node(Op::Broadcast, [site.through(0, |op| matches!(op, Op::Broadcast))?])),
    ),
    Rule::new("permute of permute", |op| matches!(op, Op::Permute { .. }), permute_of_permute),
    Rule::new("slice of slice", |op| matches!(op, Op::Slice { .. }), slice_of_slice),
    Rule::new("slice of concat", |op| matches!(op, Op::Slice { .. }), slice_of_concat),
    Rule::new("neg of neg", |op| *op == Op::Unary(UnaryOp::Neg), undone),
    Rule::new("not of not", |op| *op == Op::Unary(UnaryOp::Not), undone),
    Rule::new(
        "idempotent unary",
        |op| matches!(op, Op::Unary(UnaryOp::Abs | UnaryOp::Floor)),
        |site| site.through(0, |inner| inner == site.op).map(|_| New::Value(site.operands[0])),
    ),
    Rule::new(
        "abs of neg",
        |op| *op == Op::Unary(UnaryOp::Abs),
        |site| {
            let inner = site.through(0, |inner| *inner == Op::Unary(UnaryOp::Neg))?;
            Some(site.node(Op::Unary(UnaryOp::Abs), [inner]))
        },
    ),
    Rule::new("neutral operand", |op| matches!(op, Op::Binary(_)), neutral_operand),
    Rule::new("select of what is known", |op| matches!(op, Op::Select), select),
    Rule::new("matmul operand as it is", |op| matches!(op, Op::MatMul { .. }), matmul),
    Rule::new("gather of cast", |op| matches!(op, Op::Gather), gather_of_cast),
];

/// Whether every value of `from` is a value of `to`.
fn is_widening(from: DType, to: DType) -> bool {
    use DType::{BF16, Bool, E4M3, F16, F32, I4, I32, I64, U8};
    match from {
        Bool => true,
        U8 => matches!(to, U8 | I32 | I64 | F32 | F16 | BF16),
        I32 => matches!(to, I32 | I64),
        I64 => to == I64,
        F16 => matches!(to, F16 | F32),
        BF16 => matches!(to, BF16 | F32),
        F32 => to == F32,
        E4M3 => matches!(to, E4M3 | F32 | F16 | BF16),
        I4 => matches!(to, I4 | I32 | I64 | F32 | F16 | BF16 | E4M3),
    }
}

fn cast_of_cast(site: &Site<'_>) -> Option<New> {
    let inner = site.through(0, |op| matches!(op, Op::Cast))?;
    let from = site.graph.ty(inner);
    is_widening(from.dtype, site.operand_ty(0).dtype).then(|| match from == site.ty {
        true => New::Value(inner),
        false => site.node(Op::Cast, [inner]),
    })
}

fn permute_of_permute(site: &Site<'_>) -> Option<New> {
    let data = site.definition(0)?;
    let (Op::Permute { perm }, Op::Permute { perm: first }) = (site.op, &data.op) else {
        return None;
    };
    let perm = perm.iter().map(|&axis| first[axis]).collect();
    Some(site.node(Op::Permute { perm }, data.operands.iter().copied()))
}

fn slice_of_slice(site: &Site<'_>) -> Option<New> {
    let data = site.definition(0)?;
    match (site.op, &data.op) {
        (Op::Slice { axis, start }, Op::Slice { axis: inner, start: first }) if axis == inner => {
            let op = Op::Slice { axis: *axis, start: first + start };
            Some(site.node(op, data.operands.iter().copied()))
        }
        _ => None,
    }
}

fn slice_of_concat(site: &Site<'_>) -> Option<New> {
    let data = site.definition(0)?;
    let (&Op::Slice { axis, start }, Op::Concat { axis: inner }) = (site.op, &data.op) else {
        return None;
    };
    let end = start + site.ty.shape[axis].as_constant()?;
    let mut first = 0;
    for &part in data.operands.iter().filter(|_| axis == *inner) {
        let last = first + site.graph.ty(part).shape[axis].as_constant()?;
        if first <= start && end <= last {
            return Some(site.node(Op::Slice { axis, start: start - first }, [part]));
        }
        first = last;
    }
    None
}

/// What an op that undoes itself was applied to.
fn undone(site: &Site<'_>) -> Option<New> {
    site.through(0, |inner| inner == site.op).map(New::Value)
}

/// `x + -0`, `x - 0`, `x * 1` and `x / 1`. Neither `x + 0` nor `x - -0` is `x` for floats: both
/// make 0 of -0.
fn neutral_operand(site: &Site<'_>) -> Option<New> {
    let Op::Binary(op) = site.op else { return None };
    let dtype = site.operand_ty(0).dtype;
    let (neutral, commutes) = match op {
        BinaryOp::Add => (if dtype.is_float() { -0.0 } else { 0.0 }, true),
        BinaryOp::Sub => (0.0, false),
        BinaryOp::Mul => (1.0, true),
        BinaryOp::Div => (1.0, false),
        BinaryOp::And => (1.0, true),
        BinaryOp::Or => (0.0, true),
        _ => return None,
    };
    let is_neutral = |position| site.splat(position) == Some(Scalar::new(dtype, neutral));
    match (is_neutral(1), commutes && is_neutral(0)) {
        (true, _) => Some(New::Value(site.operands[0])),
        (false, true) => Some(New::Value(site.operands[1])),
        (false, false) => None,
    }
}

/// A choice between equal values, or by a constant.
fn select(site: &Site<'_>) -> Option<New> {
    let [_, yes, no] = *site.operands else { return None };
    if yes == no {
        return Some(New::Value(yes));
    }
    Some(New::Value(if site.splat(0)?.to_f64() != 0.0 { yes } else { no }))
}

/// A matmul multiplies floats of any two dtypes in f32 from either storage order, so a transposed
/// operand is a flag and a widened one the narrow operand itself.
fn matmul(site: &Site<'_>) -> Option<New> {
    let &Op::MatMul { transpose_lhs, transpose_rhs } = site.op else { return None };
    let mut flags = [transpose_lhs, transpose_rhs];
    let side = (0..2).find(|&side| {
        let Some(data) = site.definition(side) else { return false };
        match &data.op {
            Op::Permute { perm } if swaps_last_two(perm) => {
                flags[side] = !flags[side];
                true
            }
            Op::Cast => {
                let (from, to) =
                    (site.graph.ty(data.operands[0]).dtype, site.operand_ty(side).dtype);
                from.is_float() && is_widening(from, to)
            }
            _ => false,
        }
    })?;
    let mut operands = site.operands.to_vec();
    operands[side] = site.definition(side)?.operands[0];
    let [transpose_lhs, transpose_rhs] = flags;
    Some(site.node(Op::MatMul { transpose_lhs, transpose_rhs }, operands))
}

/// Rows of a cast weight are cast rows of the weight: only what is gathered is cast.
fn gather_of_cast(site: &Site<'_>) -> Option<New> {
    let table = site.through(0, |op| matches!(op, Op::Cast))?;
    matches!(site.graph.def(table), ValueDef::Weight(_)).then(|| {
        let rows = site.ty.with_dtype(site.graph.ty(table).dtype);
        let operands = vec![New::Value(table), New::Value(site.operands[1])];
        site.nodes(Op::Cast, [New::Node(Op::Gather, operands, rows)])
    })
}

fn swaps_last_two(perm: &[usize]) -> bool {
    let n = perm.len();
    n >= 2
        && perm[n - 1] == n - 2
        && perm[n - 2] == n - 1
        && perm[..n - 2].iter().enumerate().all(|(i, &axis)| i == axis)
}
