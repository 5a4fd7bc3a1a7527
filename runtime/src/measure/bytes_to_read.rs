//! What a step must read, from the plan.

use super::plan::PlannedStep;
use crate::words::roles;
use piecewise_ir::custom::Attr;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::{Op, OpClass};
use piecewise_kernels::experts::Experts;
use std::collections::BTreeSet;

/// The bytes that no implementation can leave unread: each weight that a product reads, with its scales,, once, and
/// keys and values of every position that is attended to, once. Boundaries, gathered rows,
/// weights of norms and everything written come on top, so that bytes per second computed from
/// these are a lower bound. Of experts it is what tokens read that choose at random: where many choose the
/// same, it is less.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct BytesToRead {
    /// Bytes of the weights that products read.
    pub weights: u64,
    /// Bytes of keys and values of one position, over all layers.
    pub per_position: u64,
    /// The experts of a model that has such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertBytes>,
}

/// The experts of all layers, each of which has as many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct ExpertBytes {
    /// Of all layers together.
    pub weights: u64,
    /// Experts of a layer.
    pub count: u64,
    /// How many of them a token goes through.
    pub per_token: u64,
}

impl ExpertBytes {
    /// How many experts of a layer so many tokens choose, where each is as likely as the others.
    pub fn distinct(&self, tokens: u64) -> f64 {
        let count = (self.count as f64).max(1.0);
        let left = 1.0 - self.per_token as f64 / count;
        count * (1.0 - left.powi(i32::try_from(tokens).unwrap_or(i32::MAX)))
    }

    fn bytes(&self, tokens: u64) -> u64 {
        (self.weights as f64 * self.distinct(tokens) / (self.count as f64).max(1.0)) as u64
    }
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
            experts: graph.nodes().fold(None, |found: Option<ExpertBytes>, node| {
                let node = graph.node(node);
                let Op::Custom(call) = &node.op else { return found };
                let (true, Some(&Attr::Int(top_k))) =
                    (call.name == Experts::NAME, call.attrs.get("top_k"))
                else {
                    return found;
                };
                let weights = node.operands.iter().filter(|value| is_weight(value));
                let weights = Vec::from_iter(weights.map(|value| graph.ty(*value)));
                let bytes: u64 = weights.iter().map(|ty| ty.bytes(&[])).sum();
                let count = weights.first().and_then(|ty| ty.shape.first()?.as_constant());
                Some(ExpertBytes {
                    weights: found.map_or(0, |found| found.weights) + bytes,
                    count: count.unwrap_or(0),
                    per_token: top_k as u64,
                })
            }),
        }
    }

    /// Bytes that a step must read: the weights once, those of the experts that its tokens choose, and the
    /// keys and values of its positions.
    pub fn bytes(&self, step: &PlannedStep) -> u64 {
        let experts = self.experts.map_or(0, |experts| experts.bytes(step.tokens()));
        self.weights + experts + self.per_position * step.positions()
    }
}
