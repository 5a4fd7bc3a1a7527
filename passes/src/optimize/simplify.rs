//! The local rules of canonicalization. Each keeps every bit of the result, signed zeros and
//! NaNs included.

use crate::analysis::splat;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::literal::Scalar;
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_ir::types::TensorType;

/// What a node may be replaced with.
pub(crate) enum Simpler {
    /// A value that is there already.
    Value(Value),
    /// Another op on other operands with the same result type.
    Node(Op, Vec<Value>),
    /// A cast of another op of this type.
    CastOf(Op, Vec<Value>, TensorType),
}

/// The rule that applies, and what it makes.
type Simplified = Option<(&'static str, Simpler)>;

/// The first rule that applies to `op` of `operands` with the result type `ty`, with its name.
pub(crate) fn simplify(graph: &Graph, op: &Op, operands: &[Value], ty: &TensorType) -> Simplified {
    let keeps_type = operands.first().is_some_and(|&v| graph.ty(v) == ty);
    match op {
        Op::Cast | Op::Reshape | Op::Broadcast | Op::Slice { .. } if keeps_type => {
            no_op(operands[0])
        }
        Op::Concat { .. } if operands.len() == 1 => no_op(operands[0]),
        Op::Permute { perm } if perm.is_sorted() => no_op(operands[0]),
        Op::Cast => cast_of_cast(graph, operands[0], ty),
        Op::Reshape => {
            let inner = operand_of(graph, operands[0], |op| matches!(op, Op::Reshape))?;
            Some(("reshape of reshape", Simpler::Node(Op::Reshape, vec![inner])))
        }
        Op::Broadcast => {
            let inner = operand_of(graph, operands[0], |op| matches!(op, Op::Broadcast))?;
            Some(("broadcast of broadcast", Simpler::Node(Op::Broadcast, vec![inner])))
        }
        Op::Permute { perm } => permute_of_permute(graph, perm, operands[0]),
        Op::Slice { axis, start } => slice_of(graph, *axis, *start, operands[0], ty),
        Op::Unary(unary) => unary_of_unary(graph, *unary, operands[0]),
        Op::Binary(binary) => with_neutral(graph, *binary, operands[0], operands[1]),
        Op::Select => select(graph, operands),
        Op::MatMul { transpose_lhs, transpose_rhs } => {
            matmul(graph, [*transpose_lhs, *transpose_rhs], operands)
        }
        Op::Gather => gather_of_cast(graph, operands, ty),
        _ => None,
    }
}

fn no_op(value: Value) -> Simplified {
    Some(("no-op", Simpler::Value(value)))
}

/// The first operand of the node that defines `value`, if its op is as wanted.
fn operand_of(graph: &Graph, value: Value, wanted: impl Fn(&Op) -> bool) -> Option<Value> {
    let data = graph.node(graph.defining_node(value)?);
    wanted(&data.op).then(|| data.operands[0])
}

/// Whether every value of `from` is a value of `to`.
pub(crate) fn is_widening(from: DType, to: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, I32, I64, U8};
    match from {
        Bool => true,
        U8 => matches!(to, U8 | I32 | I64 | F32 | F16 | BF16),
        I32 => matches!(to, I32 | I64),
        I64 => to == I64,
        F16 => matches!(to, F16 | F32),
        BF16 => matches!(to, BF16 | F32),
        F32 => to == F32,
    }
}

fn cast_of_cast(graph: &Graph, value: Value, ty: &TensorType) -> Simplified {
    let inner = operand_of(graph, value, |op| matches!(op, Op::Cast))?;
    if !is_widening(graph.ty(inner).dtype, graph.ty(value).dtype) {
        return None;
    }
    Some((
        "cast of widening cast",
        if graph.ty(inner) == ty {
            Simpler::Value(inner)
        } else {
            Simpler::Node(Op::Cast, vec![inner])
        },
    ))
}

fn permute_of_permute(graph: &Graph, perm: &[usize], value: Value) -> Simplified {
    let data = graph.node(graph.defining_node(value)?);
    let Op::Permute { perm: first } = &data.op else { return None };
    let perm = perm.iter().map(|&axis| first[axis]).collect();
    Some(("permute of permute", Simpler::Node(Op::Permute { perm }, data.operands.clone())))
}

fn slice_of(graph: &Graph, axis: usize, start: u64, value: Value, ty: &TensorType) -> Simplified {
    let data = graph.node(graph.defining_node(value)?);
    match &data.op {
        Op::Slice { axis: inner, start: first } if *inner == axis => {
            let op = Op::Slice { axis, start: first + start };
            Some(("slice of slice", Simpler::Node(op, data.operands.clone())))
        }
        Op::Concat { axis: inner } if *inner == axis => {
            let end = start + ty.shape[axis].as_constant()?;
            let mut first = 0;
            for &part in &data.operands {
                let last = first + graph.ty(part).shape[axis].as_constant()?;
                if first <= start && end <= last {
                    let op = Op::Slice { axis, start: start - first };
                    return Some(("slice of concat", Simpler::Node(op, vec![part])));
                }
                first = last;
            }
            None
        }
        _ => None,
    }
}

fn unary_of_unary(graph: &Graph, op: UnaryOp, value: Value) -> Simplified {
    let data = graph.node(graph.defining_node(value)?);
    let Op::Unary(inner) = data.op else { return None };
    match (op, inner) {
        (UnaryOp::Neg, UnaryOp::Neg) => Some(("neg of neg", Simpler::Value(data.operands[0]))),
        (UnaryOp::Not, UnaryOp::Not) => Some(("not of not", Simpler::Value(data.operands[0]))),
        (UnaryOp::Abs, UnaryOp::Abs) | (UnaryOp::Floor, UnaryOp::Floor) => {
            Some(("idempotent unary", Simpler::Value(value)))
        }
        (UnaryOp::Abs, UnaryOp::Neg) => {
            Some(("abs of neg", Simpler::Node(Op::Unary(op), data.operands.clone())))
        }
        _ => None,
    }
}

/// `x + -0`, `x - 0`, `x * 1` and `x / 1`. Neither `x + 0` nor `x - -0` is `x` for floats: both
/// make 0 of -0.
fn with_neutral(graph: &Graph, op: BinaryOp, a: Value, b: Value) -> Simplified {
    let dtype = graph.ty(a).dtype;
    let (neutral, commutes) = match op {
        BinaryOp::Add => (Scalar::new(dtype, if dtype.is_float() { -0.0 } else { 0.0 }), true),
        BinaryOp::Sub => (Scalar::new(dtype, 0.0), false),
        BinaryOp::Mul => (Scalar::new(dtype, 1.0), true),
        BinaryOp::Div => (Scalar::new(dtype, 1.0), false),
        BinaryOp::And => (Scalar::new(dtype, 1.0), true),
        BinaryOp::Or => (Scalar::new(dtype, 0.0), true),
        BinaryOp::Max | BinaryOp::Min => return None,
    };
    if splat(graph, b) == Some(neutral) {
        return Some(("neutral operand", Simpler::Value(a)));
    }
    if commutes && splat(graph, a) == Some(neutral) {
        return Some(("neutral operand", Simpler::Value(b)));
    }
    None
}

fn select(graph: &Graph, operands: &[Value]) -> Simplified {
    let [condition, yes, no] = *operands else { return None };
    if yes == no {
        return Some(("select of one value", Simpler::Value(yes)));
    }
    let chosen = if splat(graph, condition)?.to_f64() != 0.0 { yes } else { no };
    Some(("select by a constant", Simpler::Value(chosen)))
}

/// A matmul multiplies floats of any two dtypes in f32 from either storage order, so a transposed
/// operand is a flag and a widened one the narrow operand itself.
fn matmul(graph: &Graph, mut flags: [bool; 2], operands: &[Value]) -> Simplified {
    for side in 0..2 {
        let Some(node) = graph.defining_node(operands[side]) else { continue };
        let data = graph.node(node);
        let rule = match &data.op {
            Op::Permute { perm } if swaps_last_two(perm) => {
                flags[side] = !flags[side];
                "transposed matmul operand"
            }
            Op::Cast if is_float_widening(graph, data.operands[0], operands[side]) => {
                "widened matmul operand"
            }
            _ => continue,
        };
        let mut operands = operands.to_vec();
        operands[side] = data.operands[0];
        let [transpose_lhs, transpose_rhs] = flags;
        return Some((rule, Simpler::Node(Op::MatMul { transpose_lhs, transpose_rhs }, operands)));
    }
    None
}

/// Rows of a cast weight are cast rows of the weight: only what is gathered is cast.
fn gather_of_cast(graph: &Graph, operands: &[Value], ty: &TensorType) -> Simplified {
    let table = operand_of(graph, operands[0], |op| matches!(op, Op::Cast))?;
    matches!(graph.def(table), ValueDef::Weight(_)).then(|| {
        let rows = ty.with_dtype(graph.ty(table).dtype);
        ("gather of cast", Simpler::CastOf(Op::Gather, vec![table, operands[1]], rows))
    })
}

fn is_float_widening(graph: &Graph, from: Value, to: Value) -> bool {
    let (from, to) = (graph.ty(from).dtype, graph.ty(to).dtype);
    from.is_float() && is_widening(from, to)
}

fn swaps_last_two(perm: &[usize]) -> bool {
    let n = perm.len();
    n >= 2
        && perm[n - 1] == n - 2
        && perm[n - 2] == n - 1
        && perm[..n - 2].iter().enumerate().all(|(i, &axis)| i == axis)
}
