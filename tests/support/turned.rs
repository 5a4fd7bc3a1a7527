//! A pass that is wrong, for those who find out.

use piecewise::ir::op::{BinaryOp, Op};
use piecewise::passes::analysis::Names;
use piecewise::prelude::*;

/// Turns every `a + b`, which is right, and one `a - b`, which is not.
#[derive(Debug)]
pub(crate) struct Turned {
    /// Whether each is a rewrite that can be left out.
    pub(crate) counts: bool,
    /// What the scope of the difference has in it.
    pub(crate) scope: &'static str,
}

impl Pass for Turned {
    fn name(&self) -> &'static str {
        "turned"
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let names = Names::of(graph);
        let mut is_done = false;
        for node in graph.order().to_vec() {
            let data = graph.node(node);
            let [is_sub, is_add] =
                [BinaryOp::Sub, BinaryOp::Add].map(|op| data.op == Op::Binary(op));
            // The first alone: turned in queries and keys alike, it would cancel out.
            let is_wrong = is_sub && data.loc.scope.contains(self.scope) && !is_done;
            is_done |= is_wrong;
            let is_asked = is_wrong || is_add;
            let rule = if is_wrong { "turned difference" } else { "turned sum" };
            if !is_asked || self.counts && !cx.rewrites.allow(rule, || names.node(graph, node)) {
                continue;
            }
            graph.node_mut(node).operands.reverse();
            report.count(rule);
        }
        Ok(report)
    }
}
