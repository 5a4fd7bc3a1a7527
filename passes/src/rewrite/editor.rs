//! Rewriting in one forward walk: nodes are kept, inserted or replaced in program order.

use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::op::Op;
use piecewise_ir::types::TensorType;
use rustc_hash::FxHashMap;

/// Builds the next program order of a graph from its last one.
///
/// A node that is neither kept nor inserted is dropped; each of its results that something still
/// reads must have been replaced by a value that is defined by then. Where one node becomes others, a
/// [`Rule`](super::Rule) says so in less.
#[derive(Debug)]
pub struct Editor<'g> {
    /// Whose nodes still have the operands that they had, unless they were kept.
    pub graph: &'g mut Graph,
    order: Vec<Node>,
    replaced: FxHashMap<Value, Value>,
}

impl<'g> Editor<'g> {
    /// Begins before the first node: nothing is kept yet.
    pub fn new(graph: &'g mut Graph) -> Self {
        let order = Vec::with_capacity(graph.order().len());
        Self { graph, order, replaced: FxHashMap::default() }
    }

    /// What stands for `value` now.
    pub fn resolve(&self, mut value: Value) -> Value {
        while let Some(&next) = self.replaced.get(&value) {
            value = next;
        }
        value
    }

    /// Keeps `node`, with operands as they are now.
    pub fn keep(&mut self, node: Node) {
        self.resolve_operands(node);
        self.order.push(node);
    }

    /// Makes the operands of `node` what stands for them now.
    pub fn resolve_operands(&mut self, node: Node) {
        for i in 0..self.graph.node(node).operands.len() {
            let now = self.resolve(self.graph.node(node).operands[i]);
            self.graph.node_mut(node).operands[i] = now;
        }
    }

    /// Inserts a node of one result here.
    pub fn insert(&mut self, op: Op, operands: Vec<Value>, ty: TensorType, loc: Loc) -> Value {
        let value = self.graph.push(op, operands, ty, loc);
        self.order.extend(self.graph.defining_node(value));
        value
    }

    /// Lets `to` stand for `from` in all that follows.
    pub fn replace(&mut self, from: Value, to: Value) {
        let to = self.resolve(to);
        if from != to {
            self.replaced.insert(from, to);
        }
    }

    /// Puts the new program order in place.
    pub fn finish(self) {
        let outputs = self.graph.outputs().iter().map(|&v| self.resolve(v)).collect();
        self.graph.set_order(self.order);
        self.graph.set_outputs(outputs);
    }
}
