//! One node: its operands taken, its op evaluated, its results defined.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::error::EvalError;
use super::frame::{Context, Frame, Held};
use super::{Array, elementwise, layout, matmul, reduce, rows};
use crate::custom::CustomCall;
use crate::dtype::DType;
use crate::entity::{Entity, Node, Symbol, Value};
use crate::op::Op;
use crate::region::{ParamMode, Region};
use std::borrow::Cow;

/// Runs node `id` of a verified graph.
#[expect(clippy::wildcard_enum_match_arm, reason = "`pure` names the other ops")]
pub(super) fn run(
    context: &Context<'_>,
    frame: &mut Frame<'_>,
    states: &mut [Array],
    id: Node,
) -> Result<(), EvalError> {
    let graph = frame.graph;
    let node = graph.node(id);
    match &node.op {
        Op::Scatter => scatter(frame, states, &node.operands),
        Op::Region(r) => return region(context, frame, states, id, r),
        Op::Custom(call) => return custom(context, frame, states, id, call),
        Op::TopK { axis } => {
            let shape = result_shape(context, frame, node.results[0])?;
            let a = frame.array(node.operands[0], states);
            let (values, indices) = reduce::top_k(a, *axis, shape[*axis]);
            frame.define(node.results[0], context.settle(values));
            frame.define(node.results[1], context.settle(indices));
        }
        op => {
            let result = node.results[0];
            let shape = result_shape(context, frame, result)?;
            let operands: Vec<&Array> =
                node.operands.iter().map(|&v| frame.array(v, states)).collect();
            let array = pure(op, &operands, graph.ty(result).dtype, shape)
                .ok_or_else(|| EvalError::EmptyTable { node: frame.names.node(id) })?;
            frame.define(result, context.settle(array));
        }
    }
    Ok(())
}

fn result_shape(
    context: &Context<'_>,
    frame: &Frame<'_>,
    value: Value,
) -> Result<Vec<usize>, EvalError> {
    context.shape(frame.graph.ty(value), || value.to_string())
}

/// The result of an op of one result that mutates nothing; `None` for a gather from no rows.
fn pure(op: &Op, operands: &[&Array], dtype: DType, shape: Vec<usize>) -> Option<Array> {
    let data = match op {
        Op::Unary(op) => {
            operands[0].data.iter().map(|&x| elementwise::unary(*op, dtype, x)).collect()
        }
        Op::Binary(op) => zip(operands, |a, b| elementwise::binary(*op, dtype, a, b)),
        Op::Compare(op) => zip(operands, |a, b| elementwise::compare(*op, a, b)),
        Op::Select => {
            let [c, a, b] = [operands[0], operands[1], operands[2]];
            let chosen = |i: usize| if c.data[i] != 0.0 { a.data[i] } else { b.data[i] };
            (0..c.data.len()).map(chosen).collect()
        }
        Op::Cast if dtype.is_float() => operands[0].data.clone(),
        Op::Cast => operands[0].data.iter().map(|&x| dtype.round(x)).collect(),
        Op::Reduce { op, axes } => return Some(reduce::reduce(*op, operands[0], axes)),
        Op::ArgMax { axis } => return Some(reduce::arg_max(operands[0], *axis)),
        Op::Broadcast => return Some(layout::broadcast(operands[0], shape)),
        Op::Reshape => operands[0].data.clone(),
        Op::Permute { perm } => return Some(layout::permute(operands[0], perm)),
        Op::Slice { axis, start } => {
            return Some(layout::slice(operands[0], *axis, *start as usize, shape));
        }
        Op::Concat { axis } => return Some(layout::concat(operands, *axis, shape)),
        Op::Gather => return rows::gather(operands[0], operands[1]),
        Op::MatMul { transpose_lhs, transpose_rhs } => {
            let (lhs, rhs) = (operands[0], operands[1]);
            return Some(matmul::matmul(lhs, *transpose_lhs, rhs, *transpose_rhs, dtype, shape));
        }
        Op::ScaledMatMul { block } => {
            return Some(matmul::scaled_matmul(operands, *block, dtype, shape));
        }
        Op::Iota { axis } => {
            let indices = layout::iota(&shape, *axis);
            match dtype.is_float() {
                true => indices,
                false => indices.into_iter().map(|x| dtype.round(x)).collect(),
            }
        }
        Op::Literal(literal) => literal.scalars().map(|s| s.to_f64()).collect(),
        Op::Scatter | Op::Region(_) | Op::Custom(_) | Op::TopK { .. } => {
            unreachable!("`{}` is not evaluated as an op of one result", op.mnemonic())
        }
    };
    Some(Array { dtype, shape, data })
}

fn zip(operands: &[&Array], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    operands[0].data.iter().zip(&operands[1].data).map(|(&a, &b)| f(a, b)).collect()
}

fn scatter(frame: &Frame<'_>, states: &mut [Array], operands: &[Value]) {
    let Some(position) = frame.state(operands[0]) else {
        unreachable!("{} is scattered into but is no state", operands[0]);
    };
    let nothing = Array { dtype: states[position].dtype, shape: vec![0], data: Vec::new() };
    let mut state = std::mem::replace(&mut states[position], nothing);
    // Rows are rounded already, and verification excludes that the state is an operand twice.
    let (slots, rows) = (frame.array(operands[1], states), frame.array(operands[2], states));
    rows::scatter(&mut state, slots, rows);
    states[position] = state;
}

/// Runs the body once for each row, in order.
fn region(
    context: &Context<'_>,
    frame: &mut Frame<'_>,
    states: &mut [Array],
    id: Node,
    region: &Region,
) -> Result<(), EvalError> {
    let node = frame.graph.node(id);
    let mut results = Vec::with_capacity(node.results.len());
    for &value in &node.results {
        let shape = result_shape(context, frame, value)?;
        let capacity = shape.iter().product();
        let dtype = frame.graph.ty(value).dtype;
        results.push(Array { dtype, shape, data: Vec::with_capacity(capacity) });
    }
    for row in 0..rows_of(context, region.over) {
        let mut body = Frame::of_body(&region.body);
        for (i, (&operand, mode)) in node.operands.iter().zip(&region.params).enumerate() {
            let param = region.body.inputs()[i].value;
            let held = match (frame.state(operand), mode) {
                (Some(state), ParamMode::Whole | ParamMode::Mut) => Held::State(state),
                (_, ParamMode::Row) => {
                    Held::Shared(Cow::Owned(row_of(frame.array(operand, states), row)))
                }
                (None, _) => Held::Shared(Cow::Borrowed(frame.array(operand, &[]))),
            };
            body.set(param, held);
        }
        for statement in region.body.nodes() {
            run(context, &mut body, states, statement)?;
        }
        for (result, &output) in results.iter_mut().zip(region.body.outputs()) {
            result.data.extend_from_slice(&body.array(output, states).data);
        }
    }
    for (&value, array) in node.results.iter().zip(results) {
        frame.define(value, array);
    }
    Ok(())
}

fn rows_of(context: &Context<'_>, symbol: Symbol) -> usize {
    context.sizes.get(symbol.index()).map_or(0, |&n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn row_of(array: &Array, row: usize) -> Array {
    let width = array.row_len();
    let data = array.data[row * width..][..width].to_vec();
    Array { dtype: array.dtype, shape: array.shape[1..].to_vec(), data }
}

fn custom(
    context: &Context<'_>,
    frame: &mut Frame<'_>,
    states: &mut [Array],
    id: Node,
    call: &CustomCall,
) -> Result<(), EvalError> {
    let node = frame.graph.node(id);
    let name = call.name.clone();
    let Some(def) = context.ops.get(&name) else {
        return Err(EvalError::UnknownOp { node: frame.names.node(id), name });
    };
    let shown = frame.names.node(id);
    let failed =
        |reason: String| EvalError::Custom { node: shown.clone(), name: name.clone(), reason };
    let mutated: Vec<Value> = call.mutates.iter().map(|&i| node.operands[i]).collect();
    let mut shapes = Vec::new();
    for &value in node.results.iter().chain(&mutated) {
        shapes.push((frame.graph.ty(value).dtype, result_shape(context, frame, value)?));
    }
    let operands: Vec<Array> =
        node.operands.iter().map(|&v| frame.array(v, states).clone()).collect();
    let made = def.evaluate(&operands, &call.attrs, context.sizes).map_err(failed)?;
    if made.len() != shapes.len() {
        let (given, results) = (made.len(), node.results.len());
        return Err(failed(format!(
            "its evaluation gave {given} arrays instead of {results} results and {} states",
            mutated.len()
        )));
    }
    for (i, (array, (dtype, shape))) in made.iter().zip(&shapes).enumerate() {
        let elements: usize = shape.iter().product();
        if array.dtype != *dtype || array.shape != *shape || array.data.len() != elements {
            return Err(failed(format!(
                "array {i} of its evaluation is {}{:?} instead of {dtype}{shape:?}",
                array.dtype, array.shape
            )));
        }
    }
    let mut made = made.into_iter().map(|array| context.settle(array));
    for (&value, array) in node.results.iter().zip(&mut made) {
        frame.define(value, array);
    }
    for (&value, array) in mutated.iter().zip(&mut made) {
        let Some(position) = frame.state(value) else {
            unreachable!("{value} is mutated but is no state");
        };
        states[position] = array;
    }
    Ok(())
}
