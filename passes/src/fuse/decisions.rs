//! The decisions of fusion, counted one by one.

use crate::analysis::Names;
use crate::manager::Rewrites;
use piecewise_ir::entity::Node;
use piecewise_ir::graph::Graph;

/// What a bisection counts of the pass, each decision with the node that it is about.
pub(super) struct Decisions<'a> {
    names: Names,
    rewrites: &'a mut Rewrites,
}

impl<'a> Decisions<'a> {
    pub(super) fn of(graph: &Graph, rewrites: &'a mut Rewrites) -> Self {
        Self { names: Names::of(graph), rewrites }
    }

    /// Whether a bisection keeps apart what could be one.
    pub(super) fn are_bounded(&self) -> bool {
        self.rewrites.is_spent()
    }

    pub(super) fn allow(&mut self, rule: &'static str, graph: &Graph, node: Node) -> bool {
        self.rewrites.allow(rule, || self.names.node(graph, node))
    }

    /// Whether two nodes may be in one region.
    pub(super) fn allow_pair(
        &mut self,
        rule: &'static str,
        graph: &Graph,
        nodes: [Node; 2],
    ) -> bool {
        let [a, b] = nodes;
        self.rewrites.allow(rule, || {
            format!("{} and {}", self.names.node(graph, a), self.names.node(graph, b))
        })
    }
}
