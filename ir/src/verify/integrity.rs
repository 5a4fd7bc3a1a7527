//! Ids: what every other rule takes for granted.

use crate::diagnostic::{Anchor, Diagnostics};
use crate::entity::{Entity, Node, Value};
use crate::graph::{Graph, ValueDef};
use crate::op::Op;
use crate::text::Names;
use crate::types::TensorType;

/// Checks V0001 to V0004 and says whether they hold. Nodes outside the program order are dead and
/// not looked at.
pub(super) fn check(graph: &Graph, names: &Names<'_>, found: &mut Diagnostics) -> bool {
    let before = found.items.len();
    order(graph, names, found);
    if found.items.len() == before {
        values(graph, names, found);
    }
    if found.items.len() == before {
        definitions(graph, names, found);
        symbols(graph, names, found);
    }
    found.items.len() == before
}

fn order(graph: &Graph, names: &Names<'_>, found: &mut Diagnostics) {
    let mut seen = vec![false; graph.node_count()];
    for node in graph.nodes() {
        match seen.get_mut(node.index()) {
            Some(true) => found.push(
                "V0001",
                Anchor::Node(node),
                format!("{} is twice in the program order; an op runs once", names.node(node)),
            ),
            Some(seen) => *seen = true,
            None => found.push(
                "V0001",
                Anchor::Graph,
                format!(
                    "the program order names {}, which the graph does not have",
                    names.node(node)
                ),
            ),
        }
    }
}

fn values(graph: &Graph, names: &Names<'_>, found: &mut Diagnostics) {
    // A name is made for a message alone: this looks at every operand after every pass.
    let mut known = |value: Value, at: Anchor, what: &dyn Fn() -> String| {
        if !graph.has_value(value) {
            let value = names.value(value);
            let message = format!("{} is {value}, which the graph does not have", what());
            found.push("V0002", at, message);
        }
    };
    for input in graph.inputs() {
        known(input.value, Anchor::Graph, &|| format!("input %{}", input.name));
    }
    for (i, weight) in graph.weights().iter().enumerate() {
        known(weight.value, Anchor::Graph, &|| format!("weight w{i}"));
    }
    for state in graph.states() {
        known(state.value, Anchor::Graph, &|| format!("state \"{}\"", state.name));
    }
    for node in graph.nodes() {
        let data = graph.node(node);
        for (i, &operand) in data.operands.iter().enumerate() {
            known(operand, Anchor::Operand(node, i), &|| {
                format!("operand {i} of {}", names.node(node))
            });
        }
        for (i, &result) in data.results.iter().enumerate() {
            known(result, Anchor::Node(node), &|| format!("result {i} of {}", names.node(node)));
        }
    }
    for (i, &output) in graph.outputs().iter().enumerate() {
        known(output, Anchor::Outputs, &|| format!("output {i}"));
    }
}

fn definitions(graph: &Graph, names: &Names<'_>, found: &mut Diagnostics) {
    let mut expect = |value: Value, def: ValueDef, at: Anchor| {
        if graph.def(value) != def {
            let (actual, def) = (names.definition(graph.def(value)), names.definition(def));
            let value = names.value(value);
            let message = format!("{value} is defined by {actual}, but {def} names it too");
            found.push("V0003", at, message);
        }
    };
    for (value, def) in declared(graph) {
        expect(value, def, Anchor::Value(value));
    }
    for node in graph.nodes() {
        for (index, &result) in graph.node(node).results.iter().enumerate() {
            expect(result, ValueDef::Result { node, index }, Anchor::Node(node));
        }
    }
}

fn symbols(graph: &Graph, names: &Names<'_>, found: &mut Diagnostics) {
    let symbols = graph.symbols().len();
    let mut known = |ty: &TensorType, value: Value, at: Anchor| {
        for &(symbol, _) in ty.shape.iter().flat_map(|dim| dim.terms()) {
            if symbol.index() >= symbols {
                let message = format!(
                    "the type of {} mentions the symbol {symbol}, which is not declared",
                    names.value(value)
                );
                found.push("V0004", at, message);
                return;
            }
        }
    };
    for (value, _) in declared(graph) {
        known(graph.ty(value), value, Anchor::Value(value));
    }
    for node in graph.nodes() {
        for &result in &graph.node(node).results {
            known(graph.ty(result), result, Anchor::Node(node));
        }
    }
    for node in graph.nodes() {
        region_symbol(graph, node, found);
    }
}

fn region_symbol(graph: &Graph, node: Node, found: &mut Diagnostics) {
    if let Op::Region(region) = &graph.node(node).op
        && region.over.index() >= graph.symbols().len()
    {
        let message =
            format!("the region is over the symbol {}, which is not declared", region.over);
        found.push("V0004", Anchor::Node(node), message);
    }
}

/// Inputs, weights and states, in this order, and what each has to be defined by.
pub(super) fn declared(graph: &Graph) -> impl Iterator<Item = (Value, ValueDef)> + '_ {
    let inputs = graph.inputs().iter().enumerate().map(|(i, d)| (d.value, ValueDef::Input(i)));
    let weights = graph.weights().iter().enumerate().map(|(i, d)| (d.value, ValueDef::Weight(i)));
    let states = graph.states().iter().enumerate().map(|(i, d)| (d.value, ValueDef::State(i)));
    inputs.chain(weights).chain(states)
}
