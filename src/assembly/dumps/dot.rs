//! Graph and plan for graphviz.

use petgraph::dot::{Config, Dot};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{EdgeRef, IntoNodeReferences};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::Op;
use piecewise_ir::text::value_names;
use piecewise_passes::analysis::{Dependence, dependences};
use std::collections::BTreeMap;

/// A vertex of a picture.
#[derive(Debug)]
pub(super) struct Vertex {
    pub label: String,
    pub shape: &'static str,
}

/// An edge of a picture.
#[derive(Debug)]
pub(super) struct Edge {
    pub label: String,
    pub style: &'static str,
}

/// A picture in graphviz's language, with the vertices from top to bottom.
pub(super) fn picture(graph: &DiGraph<Vertex, Edge>) -> String {
    let edge = |_: &DiGraph<Vertex, Edge>, edge: petgraph::graph::EdgeReference<'_, Edge>| {
        let Edge { label, style } = edge.weight();
        format!("label=\"{}\" style={style}", escaped(label))
    };
    let node = |_: &DiGraph<Vertex, Edge>, (_, vertex): (NodeIndex, &Vertex)| {
        format!("label=\"{}\" shape={}", escaped(&vertex.label), vertex.shape)
    };
    let config = [Config::NodeNoLabel, Config::EdgeNoLabel];
    format!("{:?}\n", Dot::with_attr_getters(graph, &config, &edge, &node))
}

/// A label inside quotes; lines are centred.
fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The nodes of a graph in program order; solid edges carry values, dashed ones keep the order of
/// effects on a state.
pub(super) fn graph(graph: &Graph) -> String {
    let names = value_names(graph);
    let name = |value: Value| names[value.index()].clone().unwrap_or_else(|| value.to_string());
    let dependences = dependences(graph);
    let mut drawn = DiGraph::new();
    for (_, &node) in dependences.node_references() {
        let data = graph.node(node);
        let results = data.results.iter().map(|&value| {
            let ty = graph.ty(value).display(graph.symbols());
            format!("\n{}: {ty}", name(value))
        });
        let scope = match data.loc.scope.as_str() {
            "" => String::new(),
            scope => format!("\n{scope}"),
        };
        let shape = match &data.op {
            Op::Region(_) => "box",
            Op::MatMul { .. } | Op::ScaledMatMul { .. } => "house",
            Op::Custom(_) => "octagon",
            _ => "ellipse",
        };
        let label = format!("{}{}{scope}", data.op.name(), results.collect::<String>());
        drawn.add_node(Vertex { label, shape });
    }
    for edge in dependences.edge_references() {
        let (from, to) = (dependences[edge.source()], dependences[edge.target()]);
        let carried =
            graph.node(to).operands.iter().filter(|v| graph.defining_node(**v) == Some(from));
        let mut carried: Vec<String> = carried.map(|&value| name(value)).collect();
        carried.dedup();
        let (label, style) = match edge.weight() {
            Dependence::Data => (carried.join(", "), "solid"),
            Dependence::Effect => ("effect".to_owned(), "dashed"),
        };
        drawn.add_edge(edge.source(), edge.target(), Edge { label, style });
    }
    picture(&drawn)
}

/// The steps of a plan in order (dashed), and the values that go from one to another (solid).
pub(super) fn plan(module: &Module, stitch: &Stitch) -> String {
    let graph = module.graph();
    let names = value_names(graph);
    let mut drawn = DiGraph::new();
    let mut maker: Vec<Option<NodeIndex>> = vec![None; graph.value_count()];
    let mut slot_of: Vec<String> = vec![String::new(); graph.value_count()];
    if let Some(table) = module.slots() {
        for (slot, data) in table.slots.iter() {
            slot_of[data.value.index()] = format!(" in {slot}");
        }
    }
    let mut before = None;
    for &step in &stitch.steps {
        let usage = &stitch.uses[step.id()];
        let shape = match step {
            Step::Prologue(_) => "cds",
            Step::Piece(_) => "box",
            Step::Split(_) => "octagon",
        };
        let ops = usage.nodes.iter().map(|&node| graph.node(node).op.name());
        let ops = ops.collect::<Vec<_>>().join("\n");
        let label = format!("{} {} {}\n{ops}", step.id(), step.kind(), usage.unique);
        let here = drawn.add_node(Vertex { label, shape });
        let mut read: BTreeMap<NodeIndex, Vec<String>> = BTreeMap::new();
        for &value in &usage.operands {
            if let (ValueDef::Result { .. }, Some(from)) = (graph.def(value), maker[value.index()])
            {
                let name = names[value.index()].as_deref().unwrap_or("?");
                let ty = graph.ty(value).display(graph.symbols());
                let label = format!("{name}: {ty}{}", slot_of[value.index()]);
                read.entry(from).or_default().push(label);
            }
        }
        for (from, mut values) in read {
            values.dedup();
            drawn.add_edge(from, here, Edge { label: values.join("\n"), style: "solid" });
        }
        for &node in &usage.nodes {
            graph.node(node).results.iter().for_each(|v| maker[v.index()] = Some(here));
        }
        if let Some(before) = before.filter(|&before| drawn.find_edge(before, here).is_none()) {
            drawn.add_edge(before, here, Edge { label: String::new(), style: "dashed" });
        }
        before = Some(here);
    }
    picture(&drawn)
}
