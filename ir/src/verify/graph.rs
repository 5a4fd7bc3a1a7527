//! The rules of a graph, whatever module it is in.

use super::{declarations, integrity, nodes};
use crate::custom::OpDefs;
use crate::diagnostic::Diagnostics;
use crate::graph::Graph;
use crate::text::Names;

/// Checks a graph. Calls of custom ops are taken at their word.
///
/// # Errors
/// All findings.
pub fn verify_graph(graph: &Graph) -> Result<(), Diagnostics> {
    verify_graph_with(graph, &OpDefs::new())
}

/// Checks a graph, and calls of the custom ops in `ops` against their definitions.
///
/// # Errors
/// All findings.
pub fn verify_graph_with(graph: &Graph, ops: &OpDefs) -> Result<(), Diagnostics> {
    if_sound(graph, |names, found| {
        declarations::check(graph, found);
        nodes::check(graph, names, ops, found);
    })
}

/// Checks what evaluation relies on: ids, program order, ops, regions and custom calls, but no
/// conventions of declarations.
pub(crate) fn verify_structure(graph: &Graph, ops: &OpDefs) -> Result<(), Diagnostics> {
    if_sound(graph, |names, found| nodes::check(graph, names, ops, found))
}

/// The findings of `rules`, which may follow every id; of a graph with wrong ids those instead.
fn if_sound(
    graph: &Graph,
    rules: impl FnOnce(&Names<'_>, &mut Diagnostics),
) -> Result<(), Diagnostics> {
    let (names, mut found) = (Names::of(graph), Diagnostics::default());
    if integrity::check(graph, &names, &mut found) {
        rules(&names, &mut found);
    }
    names.locate(&mut found);
    found.into_result()
}
