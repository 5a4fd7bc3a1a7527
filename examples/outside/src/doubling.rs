//! A pass: `x * 2` becomes `x + x`, bit for bit.

use piecewise::ir::op::{BinaryOp, Op};
use piecewise::passes::analysis::splat;
use piecewise::prelude::*;

#[derive(Debug)]
pub struct Doubling;

impl Pass for Doubling {
    fn name(&self) -> &'static str {
        "doubling"
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        for node in graph.order().to_vec() {
            let data = graph.node(node);
            let is_two = |value| splat(graph, value).is_some_and(|scalar| scalar.to_f64() == 2.0);
            if data.op != Op::Binary(BinaryOp::Mul) || !is_two(data.operands[1]) {
                continue;
            }
            let node = graph.node_mut(node);
            node.op = Op::Binary(BinaryOp::Add);
            node.operands[1] = node.operands[0];
            report.count("doubled");
        }
        Ok(report)
    }
}
