//! The printer: one statement a line, result types always on the left.

mod graph;
mod op;
mod plan;
mod recipe;
mod writer;

pub(super) use graph::Anchors;
pub(super) use op::param_type;
pub(super) use writer::{Mode, Printer, Span, undefined};

use crate::graph::Graph;
use crate::module::Module;
use graph::Scope;

/// The names that the text of `graph` gives to its values, by value index: `%ids`, `w0`, `s0`, `v12`.
/// A value that the text does not show has none.
pub fn value_names(graph: &Graph) -> Vec<Option<String>> {
    names_in(graph, 'v')
}

/// The same where results have another letter: `a` in the body of a region.
pub(super) fn names_in(graph: &Graph, results: char) -> Vec<Option<String>> {
    Scope::new(graph, Mode::Listing, Anchors::Graph, results).names
}

/// The text of a graph as a document of its own, which [`parse_graph`](super::parse_graph) reads.
pub fn print_graph(graph: &Graph) -> String {
    let mut printer = Printer::new(Mode::Listing);
    printer.graph_document(graph);
    printer.finish()
}

/// The graph document, then the plan document with as much as the module has: unique pieces, the
/// order of pieces, slots, offsets. Without any of these it is the graph document alone.
pub fn print_module(module: &Module) -> String {
    let mut printer = Printer::new(Mode::Listing);
    printer.module(module);
    printer.finish()
}
