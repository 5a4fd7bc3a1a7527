//! The verifier: every rule of graphs and modules, each with a stable code.
//!
//! Findings are collected, not stopped at, but a later group of rules is left out where an
//! earlier one must hold for it to make sense.
//!
//! Integrity of ids; without it nothing else is looked at:
//! - `V0001`: the program order names only nodes of the graph, each at most once.
//! - `V0002`: operands, results, declarations and outputs name only values of the graph.
//! - `V0003`: a value's definition is the declaration or node that names it, and no other.
//! - `V0004`: types and regions mention only declared symbols.
//!
//! Declarations:
//! - `V0101`: a symbol's bounds hold `min <= max`, `1 <= max < 2^31`.
//! - `V0102`: names are unique among symbols, among inputs and among states.
//! - `V0103`: an index-typed input has a padding value.
//! - `V0104`: a padding value has its input's dtype.
//! - `V0105`: a weight's type is static and is the one that its recipe makes.
//! - `V0106`: the graph of a derived weight keeps the rules of this list.
//! - `V0107`: no dimension is negative within the bounds.
//! - `V0108`: at the bounds, a value's bytes are at most `i64::MAX`.
//!
//! Program order:
//! - `V0201`: an operand is defined before it is used.
//! - `V0202`: an output is defined.
//!
//! Ops:
//! - `V0301`: operand and result types fit the op.
//! - `V0302`: a literal has at most [`Literal::MAX_ELEMENTS`] elements.
//! - `V0303`: what an op mutates is a state.
//! - `V0304`: a state that an op mutates is its operand once only.
//!
//! Regions; their bodies also keep the rules above:
//! - `V0401`: there is one mode and one parameter for each operand.
//! - `V0402`: a parameter has the type that its mode makes of the operand's.
//! - `V0403`: the body has neither weights nor states.
//! - `V0404`: the body has neither matmuls nor custom ops nor regions.
//! - `V0405`: the body's outputs are the rows of the results.
//! - `V0406`: the body scatters only into `mut` parameters.
//! - `V0407`: a `mut` parameter is read by nothing and returned by nothing.
//! - `V0408`: the body's symbols are those of the graph around it.
//! - `V0409`: no value that the body computes has the region's symbol in its shape.
//!
//! Custom ops:
//! - `V0501`: mutated operand positions are ascending and in range.
//! - `V0502`: a call says what its definition says of mutation, rows and splitting.
//! - `V0503`: the definition infers the call's result types from its operands and attributes.
//!
//! [`Literal::MAX_ELEMENTS`]: crate::literal::Literal::MAX_ELEMENTS

mod custom;
mod declarations;
mod integrity;
mod nodes;
mod region;

use crate::custom::OpDefs;
use crate::diagnostic::Diagnostics;
use crate::graph::Graph;

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
    let mut found = Diagnostics::default();
    if integrity::check(graph, &mut found) {
        declarations::check(graph, &mut found);
        nodes::check(graph, ops, &mut found);
    }
    found.into_result()
}

/// Checks what evaluation relies on: ids, program order, ops, regions and custom calls, but no
/// conventions of declarations.
pub(crate) fn verify_structure(graph: &Graph, ops: &OpDefs) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::default();
    if integrity::check(graph, &mut found) {
        nodes::check(graph, ops, &mut found);
    }
    found.into_result()
}
