//! A pass: `x * 2` becomes `x + x`, bit for bit.

use piecewise::ir::entity::Value;
use piecewise::ir::op::{BinaryOp, Op};
use piecewise::passes::{Pass, PassContext, PassError, PassReport};
use piecewise::prelude::*;

/// The pass.
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
            if data.op != Op::Binary(BinaryOp::Mul) || !is_two(graph, data.operands[1]) {
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

/// Whether a value is 2 in every element.
fn is_two(graph: &Graph, value: Value) -> bool {
    let Some(node) = graph.defining_node(value) else { return false };
    match &graph.node(node).op {
        Op::Broadcast => is_two(graph, graph.node(node).operands[0]),
        Op::Literal(literal) => literal.scalars().all(|scalar| scalar.to_f64() == 2.0),
        _ => false,
    }
}
