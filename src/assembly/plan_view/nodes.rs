//! The nodes of a plan's graph, with what each computes and moves.

// A new op must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::launches::BytesMoved;
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Stitch;
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::text::value_names;
use piecewise_ir::types::TensorType;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A node of the graph, as the passes left it. Counts are those where every symbol has its bound.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Its place among the members of the plan: piece, split op or prologue.
    pub step: usize,
    /// The name of its op.
    pub op: String,
    /// Names and types of what it makes.
    pub results: Vec<String>,
    /// Where in the author's code it is.
    pub scope: String,
    /// The author's line.
    pub source: String,
    /// Of a region, its ops with how often each is there.
    pub fuses: Vec<String>,
    /// The positions of the nodes that it reads from.
    pub reads: Vec<usize>,
    /// Names of the inputs, weights and states that it reads or writes.
    pub takes: Vec<String>,
    /// Arithmetic: two for each product of numbers that is summed, one for each element that another op
    /// makes or reduces. Unknown of custom ops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
    /// What it reads and writes, whole.
    #[serde(flatten)]
    pub bytes: BytesMoved,
}

/// The nodes in the order of a step: the position of each is its place in the list.
pub(super) fn node_rows(graph: &Graph, stitch: &Stitch, bounds: &[u64]) -> Vec<NodeRow> {
    let names = value_names(graph);
    let name = |value: Value| names[value.index()].clone().unwrap_or_else(|| value.to_string());
    let steps = stitch.steps.iter().enumerate();
    let order = steps
        .flat_map(|(step, of)| stitch.uses[of.id()].nodes.iter().map(move |&node| (step, node)));
    let order = Vec::from_iter(order);
    let places: BTreeMap<Node, usize> =
        order.iter().enumerate().map(|(place, (_, node))| (*node, place)).collect();
    let row = |&(step, node): &(usize, Node)| {
        let data = graph.node(node);
        let operands = BTreeSet::from_iter(data.operands.iter().copied());
        let (mut reads, mut takes) = (BTreeSet::new(), Vec::new());
        for &value in &operands {
            match graph.def(value) {
                ValueDef::Result { node, .. } => reads.extend(places.get(&node)),
                ValueDef::Input(_) | ValueDef::Weight(_) | ValueDef::State(_) => {
                    takes.push(name(value));
                }
            }
        }
        let result = |&value: &Value| {
            format!("{}: {}", name(value), graph.ty(value).display(graph.symbols()))
        };
        NodeRow {
            step,
            op: data.op.name().to_owned(),
            results: data.results.iter().map(result).collect(),
            scope: data.loc.scope.clone(),
            source: data.loc.source.clone(),
            fuses: fused(&data.op),
            reads: reads.into_iter().copied().collect(),
            takes,
            operations: operations(graph, node, bounds),
            bytes: moved(graph, node, bounds),
        }
    };
    order.iter().map(row).collect()
}

/// The ops of a region's body, each with how often it is there.
fn fused(op: &Op) -> Vec<String> {
    let Op::Region(region) = op else { return Vec::new() };
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    for node in region.body.nodes() {
        *ops.entry(region.body.node(node).op.mnemonic()).or_default() += 1;
    }
    let ops = ops.into_iter().map(|(op, times)| match times {
        1 => op.to_owned(),
        times => format!("{times} {op}"),
    });
    ops.collect()
}

fn elements(ty: &TensorType, bounds: &[u64]) -> u64 {
    ty.dims(bounds).iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
}

/// The arithmetic of a node; nothing where it has a custom op.
fn operations(graph: &Graph, node: Node, bounds: &[u64]) -> Option<u64> {
    let data = graph.node(node);
    let made = || data.results.first().map_or(0, |&value| elements(graph.ty(value), bounds));
    let read = || data.operands.first().map_or(0, |&value| elements(graph.ty(value), bounds));
    Some(match data.op.class() {
        OpClass::Elementwise => made(),
        OpClass::Reduction | OpClass::Search => read(),
        OpClass::Remap | OpClass::Gather | OpClass::Scatter | OpClass::Constant => 0,
        OpClass::Product { transpose_lhs } => {
            let dims = data.operands.first().map(|&lhs| graph.ty(lhs).dims(bounds));
            let depth = dims.and_then(|dims| match transpose_lhs {
                true => dims.iter().rev().nth(1).copied(),
                false => dims.last().copied(),
            });
            made().saturating_mul(depth.unwrap_or(0)).saturating_mul(2)
        }
        OpClass::Region(region) => {
            let body = &region.body;
            let named = graph.symbols().values().map(|symbol| symbol.name.as_str()).zip(bounds);
            let of_name: BTreeMap<&str, u64> = named.map(|(name, &max)| (name, max)).collect();
            let sizes = body.symbols().values();
            let sizes =
                Vec::from_iter(sizes.map(|symbol| {
                    of_name.get(symbol.name.as_str()).copied().unwrap_or(symbol.max)
                }));
            let rows = bounds.get(region.over.index()).copied().unwrap_or(0);
            let of_row = body.nodes().map(|node| operations(body, node, &sizes));
            of_row.sum::<Option<u64>>()?.saturating_mul(rows)
        }
        OpClass::Custom(_) => return None,
    })
}

/// The bytes of a node's operands and results, each once; states are left out, of which a step touches a
/// part.
fn moved(graph: &Graph, node: Node, bounds: &[u64]) -> BytesMoved {
    let data = graph.node(node);
    let bytes = |value: Value| graph.ty(value).bytes(bounds);
    let mut moved = BytesMoved::default();
    for &value in &BTreeSet::from_iter(data.operands.iter().copied()) {
        match graph.def(value) {
            ValueDef::State(_) => {}
            ValueDef::Weight(_) => {
                moved.bytes_read += bytes(value);
                moved.weight_bytes += bytes(value);
            }
            ValueDef::Input(_) | ValueDef::Result { .. } => moved.bytes_read += bytes(value),
        }
    }
    let written =
        data.results.iter().filter(|&&value| !matches!(graph.def(value), ValueDef::State(_)));
    moved.bytes_written = written.map(|&value| bytes(value)).sum();
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::Assembly;
    use crate::assembly::plan_view::PlanView;

    /// By hand: two rows of eight at the most, a product of depth 8 with 6 columns, and a region of two
    /// ops for each of the 12 elements.
    #[test]
    fn what_nodes_compute_and_move_is_counted_at_the_bounds() {
        let text = r#"graph @g {
  dim T in [1..2]
  input %x: f32[T,8]
  weight w0: f32[6,8] = "w"
  v0: f32[T,6] = matmul %x, w0 {transpose_rhs}  #"layers.0.up"
  v1: f32[T,6] = tanh v0  #"layers.0"
  v2: f32[T,6] = neg v1  #"layers.0"
  ret v2
}"#;
        let planned = Assembly::text("g", text).unwrap().plan().unwrap();
        let nodes = PlanView::of(&planned).unwrap().nodes;
        let [product, region] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!((product.op.as_str(), product.operations), ("matmul", Some(2 * 12 * 8)));
        assert_eq!(product.takes, ["%x", "w0"]);
        let bytes = BytesMoved { bytes_read: 64 + 192, weight_bytes: 192, bytes_written: 48 };
        assert_eq!(product.bytes, bytes);
        assert_eq!((region.op.as_str(), region.operations), ("region", Some(2 * 12)));
        assert_eq!(
            (&region.reads[..], &region.fuses[..]),
            (&[0][..], &["neg".to_owned(), "tanh".to_owned()][..])
        );
        let bytes = BytesMoved { bytes_read: 48, weight_bytes: 0, bytes_written: 48 };
        assert_eq!((region.bytes, region.scope.as_str()), (bytes, "layers.0"));
    }
}
