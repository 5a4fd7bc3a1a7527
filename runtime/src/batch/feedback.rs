//! Whether a graph keeps the ids that it returns: a step that runs ahead takes them from there.

use crate::words::roles;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, NodeData, ValueDef};
use piecewise_ir::op::Op;

/// What is wrong with the feedback of a graph that has a state for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// No node writes the state.
    NotKept,
    /// What is written last is not what the graph returns.
    OtherIds,
    /// Nothing takes the ids from the state.
    NotTaken,
}

impl Fault {
    pub(super) fn because(self) -> &'static str {
        match self {
            Self::NotKept => "no node writes the state of role \"sampled\"",
            Self::OtherIds => "others are written into the state of role \"sampled\"",
            Self::NotTaken => "no node takes ids from the state of role \"sampled\"",
        }
    }
}

/// Holds `graph`, fused or not, to keeping what it returns as `sampled` in the state of role
/// `sampled`, and to reading it there.
pub(super) fn fault(graph: &Graph, sampled: Value) -> Option<Fault> {
    let state = graph.states().iter().find(|s| s.role.as_deref() == Some(roles::SAMPLED))?.value;
    let nodes = || graph.order().iter().map(|&node| graph.node(node));
    let mutates = |node: &&NodeData| {
        node.op.mutated_operands().iter().any(|&at| node.operands.get(at) == Some(&state))
    };
    let Some(last) = nodes().rfind(mutates) else { return Some(Fault::NotKept) };
    if !writes(last, state, sampled) {
        return Some(Fault::OtherIds);
    }
    let reads =
        |value: Value| nodes().any(|node| node.operands.contains(&value) && !mutates(&node));
    // Who takes no ids at all misses none.
    let has_role = |role: &Option<String>| role.as_deref() == Some(roles::TOKEN_IDS);
    let ids = graph.inputs().iter().find(|input| has_role(&input.role));
    let is_missed = ids.is_some_and(|ids| reads(ids.value)) && !reads(state);
    is_missed.then_some(Fault::NotTaken)
}

/// Whether a node that mutates `state` writes `ids` into it; of a custom op, whether it may.
fn writes(node: &NodeData, state: Value, ids: Value) -> bool {
    let Op::Region(region) = &node.op else {
        return match node.op {
            Op::Scatter => node.operands[2] == ids,
            _ => node.operands.contains(&ids) || node.results.contains(&ids),
        };
    };
    let body = &region.body;
    let outer = |value: Value| match body.def(value) {
        ValueDef::Input(param) => node.operands.get(param).copied(),
        _ => body.outputs().iter().position(|&o| o == value).map(|at| node.results[at]),
    };
    let inner = body.order().iter().map(|&node| body.node(node));
    let mut scatters = inner.filter(|node| node.op == Op::Scatter);
    scatters.any(|scatter| {
        outer(scatter.operands[0]) == Some(state) && outer(scatter.operands[2]) == Some(ids)
    })
}
