//! When the bytes of a value are in use, by position in the order of the step.

use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{LiveRange, Stitch};
use piecewise_ir::op::{Op, OpClass};

/// The lifetimes of the results of a step.
///
/// A matmul, or a custom op at what it may absorb, the regions of its piece that produce its operands
/// and those that consume its result are one moment: what any of them reads is live to the end of the
/// last, what any writes from the start of the first. That survives every lowering that is allowed.
pub(super) struct Lifetimes {
    live: Vec<Option<LiveRange>>,
}

impl Lifetimes {
    /// The lifetimes of every result in `graph`.
    pub(super) fn of(graph: &Graph, stitch: &Stitch) -> Self {
        let order = stitch.node_order();
        let mut spans = vec![LiveRange { start: 0, end: 0 }; graph.node_count()];
        for (at, node) in order.iter().enumerate() {
            spans[node.index()] = LiveRange { start: at, end: at };
        }
        let spans = spans_of_moments(graph, stitch, &spans);
        let mut live: Vec<Option<LiveRange>> = vec![None; graph.value_count()];
        for &node in &order {
            let span = spans[node.index()];
            let data = graph.node(node);
            for &operand in &data.operands {
                if let Some(range) = &mut live[operand.index()] {
                    range.end = range.end.max(span.end);
                }
            }
            data.results.iter().for_each(|&v| live[v.index()] = Some(span));
        }
        for value in read_by_repeated_members(graph, stitch) {
            if let Some(range) = &mut live[value.index()] {
                range.end = order.len() - 1;
            }
        }
        Self { live }
    }

    /// The lifetime of a result of the step.
    pub(super) fn live(&self, value: Value) -> LiveRange {
        self.live[value.index()].unwrap_or(LiveRange { start: 0, end: 0 })
    }
}

/// Results that a member reads whose rows are another symbol's than its own. Such a member may run
/// several times in a step, for some of its rows at a time, so that what it reads must outlast
/// what it writes.
pub fn read_by_repeated_members(graph: &Graph, stitch: &Stitch) -> Vec<Value> {
    let mut values = Vec::new();
    for step in &stitch.steps {
        let usage = &stitch.uses[step.id()];
        let Some(over) = stitch.unique[usage.unique].over else { continue };
        for &node in &usage.nodes {
            values.extend(graph.node(node).operands.iter().copied().filter(|&operand| {
                let writer = graph.defining_node(operand);
                let rows = graph.ty(operand).outer_symbol();
                writer.is_some_and(|n| !usage.nodes.contains(&n))
                    && rows.is_some_and(|symbol| symbol != over)
            }));
        }
    }
    values
}

/// For every node, from the first to the last position of the moments that it belongs to.
fn spans_of_moments(graph: &Graph, stitch: &Stitch, at: &[LiveRange]) -> Vec<LiveRange> {
    let mut spans = at.to_vec();
    for usage in stitch.uses.values() {
        for &node in &usage.nodes {
            let moment = moment(graph, &usage.nodes, node);
            let positions = || moment.iter().map(|n| at[n.index()]);
            let start = positions().map(|p| p.start).min().unwrap_or(0);
            let end = positions().map(|p| p.end).max().unwrap_or(0);
            for node in &moment {
                let span = &mut spans[node.index()];
                span.start = span.start.min(start);
                span.end = span.end.max(end);
            }
        }
    }
    spans
}

/// A node that absorbs, with the regions among `nodes` that it may.
fn moment(graph: &Graph, nodes: &[Node], absorbing: Node) -> Vec<Node> {
    let data = graph.node(absorbing);
    let values = || data.operands.iter().chain(&data.results).copied();
    let between: Vec<Value> = match data.op.class() {
        OpClass::Product { .. } => values().collect(),
        OpClass::Custom(call) => call.absorbs.iter().filter_map(|&i| values().nth(i)).collect(),
        OpClass::Elementwise | OpClass::Remap | OpClass::Reduction | OpClass::Search => {
            return vec![absorbing];
        }
        OpClass::Gather | OpClass::Scatter | OpClass::Constant | OpClass::Region(_) => {
            return vec![absorbing];
        }
    };
    let neighbours = nodes.iter().copied().filter(|&node| {
        let other = graph.node(node);
        let feeds = other.results.iter().any(|v| between.contains(v));
        let reads = data.results.iter().any(|v| between.contains(v) && other.operands.contains(v));
        matches!(other.op, Op::Region(_)) && (feeds || reads)
    });
    std::iter::once(absorbing).chain(neighbours).collect()
}
