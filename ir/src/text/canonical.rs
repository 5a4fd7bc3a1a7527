//! The text of a unique piece that its identity is the hash of.

use super::print::{Anchors, Printer};
use crate::entity::Symbol;
use crate::graph::Graph;
use std::collections::BTreeMap;

/// The text that two pieces share if they compute the same: without the graph's name, places,
/// roles, the names of inputs, states and regions, and the bounds of symbols. Symbols are named
/// by order of first use, checkpoint tensors by order of first occurrence. All that can change
/// the result is in: ops, attributes, types, literals, padding values, the symbol
/// iterated over, and which operands are one value.
///
/// The text does not parse back.
pub fn canonical_piece(graph: &Graph, over: Option<Symbol>) -> String {
    let mut names = BTreeMap::new();
    for weight in graph.weights() {
        weight.recipe.visit_sources(&mut |name, _| {
            let next = names.len();
            names.entry(name.to_owned()).or_insert(next);
        });
    }
    let mut printer = Printer::canonical(names);
    printer.put("piece");
    if let Some(over) = over {
        printer.put(" over ");
        printer.symbol(graph.symbols(), over);
    }
    printer.put(" {");
    printer.end();
    printer.graph_block(graph, Anchors::None);
    printer.put("}");
    printer.end();
    printer.finish()
}
