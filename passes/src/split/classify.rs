//! What each node is to the splitter: a prologue op, a split op or part of a piece; and which
//! symbol's rows it iterates over.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::dependence::Dependence;
use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::types::TensorType;

/// What a node is to the splitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeRole {
    /// A custom op over inputs alone: runs at the start of the step.
    Prologue,
    /// A custom op that is launched between two pieces.
    Split,
    /// A region that makes nothing but what the split op at this position may absorb, or that alone
    /// reads what it makes: it runs with it, and is launched alone where its kernels do not.
    Absorbed(usize),
    /// Part of a piece, and its place in the order of effects matters.
    Effect,
    /// Part of a piece, wherever its operands let it be.
    Pure,
}

impl NodeRole {
    /// The split op that the node at `at` runs with.
    pub(super) fn split_op(self, at: usize) -> Option<usize> {
        match self {
            Self::Split => Some(at),
            Self::Absorbed(op) => Some(op),
            Self::Prologue | Self::Effect | Self::Pure => None,
        }
    }
}

/// The role of every node by position.
pub(super) fn roles(
    graph: &Graph,
    dependence: &Dependence,
    split_ops: Option<&[String]>,
) -> Vec<NodeRole> {
    let mut from_inputs = vec![false; graph.value_count()];
    for input in graph.inputs() {
        from_inputs[input.value.index()] = true;
    }
    let mut roles = Vec::with_capacity(dependence.len());
    for at in 0..dependence.len() {
        let data = graph.node(dependence.node(at));
        let role = if let Op::Custom(call) = &data.op {
            let inputs_alone = call.mutates.is_empty()
                && !data.operands.is_empty()
                && data.operands.iter().all(|v| from_inputs[v.index()]);
            let splits = split_ops.map_or(call.splits, |names| names.contains(&call.name));
            match (inputs_alone, splits) {
                (true, _) => NodeRole::Prologue,
                (false, true) => NodeRole::Split,
                (false, false) if data.op.has_effect() => NodeRole::Effect,
                (false, false) => NodeRole::Pure,
            }
        } else if data.op.has_effect() {
            NodeRole::Effect
        } else {
            NodeRole::Pure
        };
        if role == NodeRole::Prologue {
            data.results.iter().for_each(|v| from_inputs[v.index()] = true);
        }
        roles.push(role);
    }
    for absorber in [reader, made_by] {
        for at in 0..roles.len() {
            if roles[at] == NodeRole::Pure
                && let Some(op) = absorber(graph, dependence, &roles, at)
            {
                roles[at] = NodeRole::Absorbed(op);
            }
        }
    }
    roles
}

/// The split op that alone reads the region at `at`, if it may compute it for itself.
fn reader(graph: &Graph, dependence: &Dependence, roles: &[NodeRole], at: usize) -> Option<usize> {
    let &[op] = dependence.readers(at) else { return None };
    let is_taken = roles[op] == NodeRole::Split
        && !dependence.is_returned(at)
        && is_absorbable(graph, dependence.node(at), dependence.node(op));
    is_taken.then_some(op)
}

/// The last split op whose results the region at `at` alone reads, if it may take them and all else
/// that the region reads can be there before.
fn made_by(graph: &Graph, dependence: &Dependence, roles: &[NodeRole], at: usize) -> Option<usize> {
    let is_taken = |&op: &usize| {
        let mut before = vec![false; dependence.len()];
        let others = dependence.preds(at).iter().filter(|&&pred| pred != op);
        others.for_each(|&pred| before[pred] = true);
        dependence.close_backward(&mut before);
        let comes_before = |other: usize| match roles[other] {
            NodeRole::Pure => true,
            NodeRole::Absorbed(earlier) => earlier < op,
            NodeRole::Prologue | NodeRole::Split | NodeRole::Effect => false,
        };
        roles[op] == NodeRole::Split
            && dependence.readers(op) == [at]
            && !dependence.is_returned(op)
            && (op..at).all(|other| !before[other] || comes_before(other))
            && is_absorbable(graph, dependence.node(at), dependence.node(op))
    };
    dependence.preds(at).iter().rev().copied().find(is_taken)
}

/// Whether `region` has no state, and makes elements or rows that the custom op `op` may compute for
/// itself, or elements of those that it may do without storing.
fn is_absorbable(graph: &Graph, region: Node, op: Node) -> bool {
    let (beside, data) = (graph.node(region), graph.node(op));
    let (Op::Region(region), Op::Custom(call)) = (&beside.op, &data.op) else { return false };
    let made = (0..).zip(&data.operands).filter(|(_, v)| beside.results.contains(v));
    let read = (data.operands.len()..).zip(&data.results);
    let mut read = read.filter(|(_, v)| beside.operands.contains(v)).peekable();
    let follows = read.peek().is_some();
    let makes_rows = |node| match region.body.node(node).op.class() {
        OpClass::Elementwise | OpClass::Remap | OpClass::Gather | OpClass::Constant => true,
        OpClass::Reduction => !follows,
        OpClass::Search | OpClass::Scatter | OpClass::Product { .. } => false,
        OpClass::Region(_) | OpClass::Custom(_) => false,
    };
    Some(region.over) == iteration_symbol(graph, op)
        && region.body.nodes().all(makes_rows)
        && !beside.operands.iter().any(|&v| matches!(graph.def(v), ValueDef::State(_)))
        && made.chain(read).all(|(i, _)| call.absorbs.contains(&i))
}

/// The symbol whose rows `node` iterates over: a region's own; else the outermost symbol of its
/// results, or, where none mentions one, of what it reads. `None` where all is static.
pub fn iteration_symbol(graph: &Graph, node: Node) -> Option<Symbol> {
    let data = graph.node(node);
    if let Op::Region(region) = &data.op {
        return Some(region.over);
    }
    let varies = |v: &Value| !matches!(graph.def(*v), ValueDef::Weight(_) | ValueDef::State(_));
    let results: Vec<&TensorType> = data.results.iter().map(|&v| graph.ty(v)).collect();
    let read: Vec<&TensorType> =
        data.operands.iter().filter(|v| varies(v)).map(|&v| graph.ty(v)).collect();
    outermost_symbol(&results).or_else(|| outermost_symbol(&read))
}

fn outermost_symbol(types: &[&TensorType]) -> Option<Symbol> {
    let outer = types.iter().find_map(|ty| ty.outer_symbol());
    let mentioned =
        || types.iter().flat_map(|ty| &ty.shape).find_map(|d| Some(d.terms().first()?.0));
    outer.or_else(mentioned)
}
