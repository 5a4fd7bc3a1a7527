//! A pass of one's own: divisions by a power of two become multiplications, bit for bit.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::ir::entity::{Node, Value};
use piecewise::ir::literal::Literal;
use piecewise::ir::op::{BinaryOp, Op};
use piecewise::ir::text::{parse_graph, print_graph};
use piecewise::passes::{
    Pass, PassContext, PassError, PassManager, PassReport, Pipeline, Registry,
};
use piecewise::prelude::*;
use std::error::Error;

#[derive(Debug)]
struct Reciprocal;

impl Pass for Reciprocal {
    fn name(&self) -> &'static str {
        "reciprocal"
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let mut order = Vec::new();
        for node in graph.order().to_vec() {
            match reciprocal_of_divisor(graph, node) {
                Some(reciprocal) => {
                    let factor = insert_like_divisor(graph, &mut order, node, reciprocal);
                    let division = graph.node_mut(node);
                    division.op = Op::Binary(BinaryOp::Mul);
                    division.operands[1] = factor;
                    report.count("division");
                }
                None if graph.node(node).op == Op::Binary(BinaryOp::Div) => {
                    let scope = graph.node(node).loc.scope.clone();
                    report.remark("div kept", scope, "its divisor is no constant power of two");
                }
                None => {}
            }
            order.push(node);
        }
        graph.set_order(order);
        Ok(report)
    }
}

/// The literal of `1 / divisor`, where `node` divides floats by a literal that was broadcast and
/// every reciprocal is exact.
fn reciprocal_of_divisor(graph: &Graph, node: Node) -> Option<Literal> {
    let data = graph.node(node);
    let divides_floats =
        data.op == Op::Binary(BinaryOp::Div) && graph.ty(data.operands[0]).dtype.is_float();
    let divisor = divides_floats.then(|| graph.defining_node(data.operands[1])).flatten()?;
    let literal = match &graph.node(divisor).op {
        Op::Broadcast => graph.defining_node(graph.node(divisor).operands[0])?,
        _ => return None,
    };
    let Op::Literal(literal) = &graph.node(literal).op else { return None };
    let dtype = literal.dtype();
    let reciprocals = literal.scalars().map(|scalar| {
        let value = scalar.to_f64();
        let reciprocal = Scalar::new(dtype, 1.0 / value);
        let is_power_of_two = value.is_normal() && value.to_bits().trailing_zeros() >= 52;
        (is_power_of_two && reciprocal.to_f64() * value == 1.0).then_some(reciprocal)
    });
    Some(Literal::from_scalars(dtype, reciprocals.collect::<Option<Vec<_>>>()?))
}

/// Adds `literal` and its broadcast to the type of the divisor of `node`.
fn insert_like_divisor(
    graph: &mut Graph,
    order: &mut Vec<Node>,
    node: Node,
    literal: Literal,
) -> Value {
    let (divisor, loc) = (graph.node(node).operands[1], graph.node(node).loc.clone());
    let wide = graph.ty(divisor).clone();
    let broadcast_from = graph.defining_node(divisor).map(|n| graph.node(n).operands[0]);
    let narrow = graph.ty(broadcast_from.unwrap_or(divisor)).clone();
    let constant = graph.push(Op::Literal(literal), Vec::new(), narrow, loc.clone());
    let factor = graph.push(Op::Broadcast, vec![constant], wide, loc);
    order.extend([constant, factor].into_iter().filter_map(|v| graph.defining_node(v)));
    factor
}

const GRAPH: &str = r#"graph @halves {
  dim T in [1..64]
  input %x: bf16[T,8]
  v0: bf16[] = literal [2.0]
  v1: bf16[T,8] = broadcast v0
  v2: bf16[T,8] = div %x, v1
  v3: bf16[] = literal [3.0]
  v4: bf16[T,8] = broadcast v3
  v5: bf16[T,8] = div v2, v4  #"third"
  ret v5
}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let mut registry = Registry::standard();
    registry.add("reciprocal", &[], |_| Ok(Box::new(Reciprocal)));
    let pipeline = Pipeline::parse("canonicalize,reciprocal,dce")?;

    let mut module = Module::new(parse_graph(GRAPH)?);
    let run =
        PassManager::new(&pipeline, &registry)?.run(&mut module, &mut PassContext::default())?;

    print!("{}", print_graph(module.graph()));
    let report = run.of("reciprocal").ok_or("the pass did not run")?;
    println!("{} division replaced", report.matches("division"));
    report.remarks.iter().for_each(|remark| println!("{remark}"));
    Ok(())
}
