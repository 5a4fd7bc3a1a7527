//! Constant expressions: what literals and iotas alone determine.
//!
//! A computation of at most [`Literal::MAX_ELEMENTS`] elements becomes a literal, of one element
//! and repeated where all are equal. A larger one becomes a derived weight that carries the
//! expression, and so does a constant that a reader needs in memory. A repetition stays a
//! repetition: it costs a reader nothing, and folded it would cost memory. Nothing of `i64` is
//! folded into a literal, for the evaluator holds elements in f64.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::weights::needs_memory;
use crate::analysis::{Names, Users, splat};
use crate::manager::PassReport;
use crate::rewrite::{Editor, Rewrites};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::eval::evaluate_constant;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::{Literal, Scalar};
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use rustc_hash::{FxHashMap, FxHashSet};

/// The largest intermediate value that folding into a literal evaluates, in elements.
const MAX_EVALUATED: u64 = 1 << 20;

/// Replaces constant expressions with literals.
pub(super) fn fold_literals(
    graph: &mut Graph,
    names: &Names,
    rewrites: &mut Rewrites,
    report: &mut PassReport,
) {
    let nodes = graph.order().to_vec();
    let mut editor = Editor::new(graph);
    let mut constant = FxHashSet::default();
    for node in nodes {
        editor.resolve_operands(node);
        let graph = &*editor.graph;
        let is_constant = is_constant(graph, &constant, node);
        let folded = match is_constant && is_foldable(graph, node) {
            true => evaluate(graph, graph.result(node)),
            false => evaluate_repeated(graph, node),
        };
        let folded = folded.filter(|_| rewrites.allow("constant", || names.node(graph, node)));
        let Some(Folded { literal, ty, repeated }) = folded else {
            constant.extend(is_constant.then(|| graph.result(node)));
            editor.keep(node);
            continue;
        };
        let result = graph.result(node);
        report.count("constant");
        let full = graph.ty(result).clone();
        let loc = graph.node(node).loc.clone();
        let mut value = editor.insert(Op::Literal(literal), vec![], ty, loc.clone());
        constant.insert(value);
        if repeated {
            value = editor.insert(Op::Broadcast, vec![value], full, loc);
            constant.insert(value);
        }
        editor.replace(result, value);
    }
    editor.finish();
}

/// Replaces constants that are too large for a literal, or needed in memory, with weights.
pub(super) fn fold_tables(
    graph: &mut Graph,
    names: &Names,
    rewrites: &mut Rewrites,
    report: &mut PassReport,
) {
    let users = Users::of(graph);
    let nodes = graph.order().to_vec();
    let mut constant = FxHashSet::default();
    let mut computes = vec![false; graph.value_count()];
    for &node in &nodes {
        if is_constant(graph, &constant, node) {
            let data = graph.node(node);
            let result = data.results[0];
            constant.insert(result);
            computes[result.index()] = !matches!(data.op, Op::Literal(_) | Op::Iota { .. })
                && !data.op.is_remap()
                || data.operands.iter().any(|v| computes[v.index()]);
        }
    }
    let mut editor = Editor::new(graph);
    for node in nodes {
        let graph = &*editor.graph;
        let result = match *graph.node(node).results.as_slice() {
            [result] if constant.contains(&result) => result,
            _ => {
                editor.keep(node);
                continue;
            }
        };
        let in_memory = users
            .nodes(result)
            .iter()
            .any(|&(user, position)| needs_memory(&graph.node(user).op, position));
        let leaves_constants = users.nodes(result).iter().any(|&(user, _)| {
            let user = graph.node(user);
            matches!(user.op, Op::Broadcast) || user.results.iter().any(|v| !constant.contains(v))
        });
        let ty = graph.ty(result).clone();
        let large = ty.static_elements().is_none_or(|n| n > Literal::MAX_ELEMENTS as u64);
        let repeats = matches!(graph.node(node).op, Op::Broadcast);
        let table = large && computes[result.index()] && leaves_constants && !repeats;
        editor.keep(node);
        let is_wanted = in_memory || table;
        let place = || names.node(editor.graph, node);
        if is_wanted && rewrites.allow("constant table", place) {
            report.count("constant table");
            let recipe = Recipe::Graph(Box::new(expression(editor.graph, result)));
            let weight = editor.graph.add_weight(ty, recipe);
            editor.replace(result, weight);
        } else if users.is_returned(result) {
            let place = names.node(editor.graph, node);
            report.remark("constant made in every step", place, "the graph returns it");
        }
    }
    editor.finish();
}

fn is_constant(graph: &Graph, constant: &FxHashSet<Value>, node: Node) -> bool {
    let data = graph.node(node);
    can_be_constant(&data.op)
        && data.results.iter().all(|&v| graph.ty(v).static_elements().is_some())
        && data.operands.iter().all(|v| constant.contains(v))
}

/// Whether an op has one result that its operands alone determine.
fn can_be_constant(op: &Op) -> bool {
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast => true,
        Op::Reduce { .. } | Op::ArgMax { .. } | Op::Gather | Op::MatMul { .. } => true,
        Op::Broadcast | Op::Reshape | Op::Permute { .. } => true,
        Op::Slice { .. } | Op::Concat { .. } | Op::Iota { .. } | Op::Literal(_) => true,
        Op::TopK { .. } | Op::Scatter | Op::Region(_) | Op::Custom(_) => false,
        Op::ScaledMatMul { .. } => false,
    }
}

fn is_foldable(graph: &Graph, node: Node) -> bool {
    let data = graph.node(node);
    let small = graph
        .ty(data.results[0])
        .static_elements()
        .is_some_and(|n| n > 0 && n <= Literal::MAX_ELEMENTS as u64);
    let of_literals = || {
        data.operands.iter().all(|&v| {
            graph.defining_node(v).is_some_and(|n| matches!(graph.node(n).op, Op::Literal(_)))
        })
    };
    small
        && match &data.op {
            Op::Literal(_) | Op::Iota { .. } | Op::Broadcast => false,
            Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Concat { .. } => {
                of_literals()
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast => true,
            Op::Reduce { .. } | Op::ArgMax { .. } | Op::Gather | Op::MatMul { .. } => true,
            Op::TopK { .. } | Op::Scatter | Op::Region(_) | Op::Custom(_) => false,
            Op::ScaledMatMul { .. } => false,
        }
}

struct Folded {
    literal: Literal,
    ty: TensorType,
    /// Whether the literal is one element that stands for all.
    repeated: bool,
}

/// Whether the evaluator, which holds elements in f64, has every value of a dtype, and a literal too.
fn is_exact_in_f64(dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U8 | DType::Bool => true,
        DType::I64 => false,
        // There are no literals of them.
        DType::E4M3 | DType::I4 => false,
    }
}

fn evaluate(graph: &Graph, value: Value) -> Option<Folded> {
    let expression = expression(graph, value);
    let values = expression.nodes().map(|n| expression.ty(expression.result(n)));
    let fits = |ty: &TensorType| {
        is_exact_in_f64(ty.dtype) && ty.static_elements().is_some_and(|n| n <= MAX_EVALUATED)
    };
    if !values.into_iter().all(fits) {
        return None;
    }
    let array = evaluate_constant(&expression).ok()?;
    let ty = graph.ty(value).clone();
    let scalars: Vec<Scalar> = array.data.iter().map(|&x| Scalar::new(ty.dtype, x)).collect();
    let repeated = scalars.len() > 1 && scalars.iter().all(|s| *s == scalars[0]);
    let ty = if repeated { TensorType::scalar(ty.dtype) } else { ty };
    let kept = if repeated { 1 } else { scalars.len() };
    let literal = Literal::from_scalars(ty.dtype, scalars.into_iter().take(kept));
    Some(Folded { literal, ty, repeated })
}

/// What an elementwise node makes of operands that are each one value over and over, at whatever size.
fn evaluate_repeated(graph: &Graph, node: Node) -> Option<Folded> {
    let data = graph.node(node);
    if data.op.class() != OpClass::Elementwise {
        return None;
    }
    let mut expression = Graph::new("");
    let mut operands = Vec::new();
    for &operand in &data.operands {
        let (scalar, dtype) = (splat(graph, operand)?, graph.ty(operand).dtype);
        let literal = Op::Literal(Literal::from_scalars(dtype, [scalar]));
        operands.push(expression.push(literal, vec![], TensorType::scalar(dtype), Loc::default()));
    }
    let ty = TensorType::scalar(graph.ty(data.results[0]).dtype);
    let result = expression.push(data.op.clone(), operands, ty, Loc::default());
    expression.set_outputs(vec![result]);
    let folded = evaluate(&expression, result)?;
    Some(Folded { repeated: true, ..folded })
}

/// The graph that computes the constant `value` and nothing else.
fn expression(graph: &Graph, value: Value) -> Graph {
    let mut expression = Graph::new("");
    let mut inside: FxHashMap<Value, Value> = FxHashMap::default();
    let mut pending = vec![value];
    while let Some(&next) = pending.last() {
        let Some(node) = graph.defining_node(next).filter(|_| !inside.contains_key(&next)) else {
            pending.pop();
            continue;
        };
        let data = graph.node(node);
        let missing = data.operands.iter().copied().filter(|v| !inside.contains_key(v));
        let before = pending.len();
        pending.extend(missing);
        if pending.len() == before {
            let operands = data.operands.iter().map(|v| inside[v]).collect();
            let ty = graph.ty(next).clone();
            let pushed = expression.push(data.op.clone(), operands, ty, Loc::default());
            inside.insert(next, pushed);
            pending.pop();
        }
    }
    expression.set_outputs(vec![inside[&value]]);
    expression
}
