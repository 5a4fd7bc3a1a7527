//! Dead code elimination: nodes that nothing reads and that mutate nothing are dropped.

use crate::manager::{Pass, PassContext, PassError, PassReport};
use piecewise_ir::entity::Entity;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;

/// Drops what neither the outputs nor a state can see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dce;

impl Pass for Dce {
    fn name(&self) -> &'static str {
        "dce"
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        report.count_many("dead node", remove_dead(module.graph_mut()));
        Ok(report)
    }
}

/// Leaves dead nodes out of the program order and returns how many there were.
pub fn remove_dead(graph: &mut Graph) -> usize {
    let mut live = vec![false; graph.value_count()];
    for output in graph.outputs() {
        live[output.index()] = true;
    }
    let mut order = Vec::with_capacity(graph.order().len());
    for node in graph.nodes().rev() {
        let data = graph.node(node);
        if data.op.has_effect() || data.results.iter().any(|v| live[v.index()]) {
            data.operands.iter().for_each(|v| live[v.index()] = true);
            order.push(node);
        }
    }
    order.reverse();
    let dead = graph.order().len() - order.len();
    if dead > 0 {
        graph.set_order(order);
    }
    dead
}
