//! The graph of a unique piece: a member's nodes with names that say nothing of the layer.

use piecewise_ir::entity::{Arena, Entity, Node, Value};
use piecewise_ir::graph::{Graph, Loc, ValueDef};
use piecewise_ir::op::Op;
use piecewise_ir::region::Region;
use piecewise_ir::weight::Recipe;
use std::collections::BTreeMap;

/// Builds the graph of one member of the step.
pub(super) struct PieceBuilder<'a> {
    source: &'a Graph,
    inputs: Vec<Value>,
    weights: Vec<Value>,
    states: Vec<Value>,
}

impl<'a> PieceBuilder<'a> {
    /// A builder of members of `source`.
    pub(super) fn new(source: &'a Graph) -> Self {
        Self { source, inputs: Vec::new(), weights: Vec::new(), states: Vec::new() }
    }

    /// The graph of `nodes`, and for each operand position of the unique piece the value of the
    /// source. Returned are the results that `read_outside` marks.
    pub(super) fn build(mut self, nodes: &[Node], read_outside: &[bool]) -> (Graph, Vec<Value>) {
        self.declare(nodes);
        let mut piece = Graph::with_symbols_of("piece", self.source);
        let mut renamed: BTreeMap<Value, Value> = BTreeMap::new();
        for (i, &value) in self.inputs.iter().enumerate() {
            let padding = match self.source.def(value) {
                ValueDef::Input(at) => self.source.inputs()[at].padding,
                _ => None,
            };
            let ty = self.source.ty(value).clone();
            renamed.insert(value, piece.add_input(format!("x{i}"), ty, padding, None));
        }
        for (i, &value) in self.weights.iter().enumerate() {
            let ty = self.source.ty(value).clone();
            // How a weight comes about is no part of a piece.
            let recipe = Recipe::Checkpoint { name: i.to_string(), ty: ty.clone() };
            renamed.insert(value, piece.add_weight(ty, recipe));
        }
        for (i, &value) in self.states.iter().enumerate() {
            let ty = self.source.ty(value).clone();
            renamed.insert(value, piece.add_state(format!("s{i}"), ty, None));
        }
        let mut results = Vec::new();
        for &node in nodes {
            let data = self.source.node(node);
            let operands =
                data.operands.iter().map(|v| renamed.get(v).copied().unwrap_or(*v)).collect();
            let types = self.source.result_types(node);
            let new = piece.push_node(nameless_op(&data.op), operands, types, Loc::default());
            renamed.extend(data.results.iter().copied().zip(piece.node(new).results.clone()));
            results.extend(data.results.iter().copied());
        }
        let returned = results.iter().filter(|v| read_outside[v.index()]);
        piece.set_outputs(returned.map(|v| renamed[v]).collect());
        let operands = [self.inputs, self.weights, self.states, results].concat();
        (piece, operands)
    }

    /// Collects what the nodes read from outside, in order of first use.
    fn declare(&mut self, nodes: &[Node]) {
        let mut seen: BTreeMap<Value, ()> = BTreeMap::new();
        for &node in nodes {
            let data = self.source.node(node);
            for &operand in &data.operands {
                if seen.insert(operand, ()).is_some() {
                    continue;
                }
                match self.source.def(operand) {
                    ValueDef::Weight(_) => self.weights.push(operand),
                    ValueDef::State(_) => self.states.push(operand),
                    ValueDef::Input(_) | ValueDef::Result { .. } => self.inputs.push(operand),
                }
            }
            seen.extend(data.results.iter().map(|&v| (v, ())));
        }
    }
}

fn nameless_op(op: &Op) -> Op {
    match op {
        Op::Region(region) => Op::Region(Box::new(Region {
            over: region.over,
            params: region.params.clone(),
            body: nameless(&region.body),
        })),
        op => op.clone(),
    }
}

/// The same graph without names and places, its values numbered in program order.
fn nameless(graph: &Graph) -> Graph {
    let mut fresh = Graph::with_symbols_of("", graph);
    let mut renamed: Arena<Value, Option<Value>> = (0..graph.value_count()).map(|_| None).collect();
    for (i, input) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(input.value).clone();
        renamed[input.value] = Some(fresh.add_input(format!("a{i}"), ty, input.padding, None));
    }
    for weight in graph.weights() {
        let ty = graph.ty(weight.value).clone();
        renamed[weight.value] = Some(fresh.add_weight(ty, weight.recipe.clone()));
    }
    for (i, state) in graph.states().iter().enumerate() {
        let ty = graph.ty(state.value).clone();
        renamed[state.value] = Some(fresh.add_state(format!("s{i}"), ty, None));
    }
    for node in graph.nodes() {
        let data = graph.node(node);
        let operands = data.operands.iter().map(|&v| renamed[v].unwrap_or(v)).collect();
        let types = graph.result_types(node);
        let new = fresh.push_node(nameless_op(&data.op), operands, types, Loc::default());
        for (&old, &now) in data.results.iter().zip(&fresh.node(new).results) {
            renamed[old] = Some(now);
        }
    }
    fresh.set_outputs(graph.outputs().iter().map(|&v| renamed[v].unwrap_or(v)).collect());
    fresh
}
