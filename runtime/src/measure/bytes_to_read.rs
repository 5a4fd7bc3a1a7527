//! What a step must read, from the plan.

use super::plan::PlannedStep;
use crate::words::roles;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::OpClass;
use std::collections::BTreeSet;

/// The bytes that no implementation can leave unread: each weight that a product reads, with its scales,, once, and
/// keys and values of every position that is attended to, once. Boundaries, gathered rows,
/// weights of norms and everything written come on top, so that bytes per second computed from
/// these are a lower bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct BytesToRead {
    /// Bytes of the weights that products read.
    pub weights: u64,
    /// Bytes of keys and values of one position, over all layers.
    pub per_position: u64,
}

impl BytesToRead {
    /// Of the steps of a graph, as the pipeline left it.
    pub fn of(graph: &Graph) -> Self {
        let is_weight = |value: &Value| matches!(graph.def(*value), ValueDef::Weight(_));
        let read: BTreeSet<Value> = graph
            .nodes()
            .map(|node| graph.node(node))
            .filter(|node| matches!(node.op.class(), OpClass::Product { .. }))
            .flat_map(|node| node.operands.iter().copied().filter(is_weight).collect::<Vec<_>>())
            .collect();
        let states = graph.states().iter();
        let paged = states.filter(|state| state.role.as_deref() == Some(roles::KV_CACHE));
        Self {
            weights: read.into_iter().map(|value| graph.ty(value).bytes(&[])).sum(),
            per_position: paged.map(|state| graph.ty(state.value).row().bytes(&[])).sum(),
        }
    }

    /// Bytes that a step must read: the weights once, and the keys and values of its positions.
    pub fn bytes(&self, step: &PlannedStep) -> u64 {
        self.weights + self.per_position * step.positions()
    }
}
