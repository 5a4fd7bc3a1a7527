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
//! - `V0109`: no input is of a narrow dtype; a packed value has a static innermost axis.
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
//! - `V0305`: only ops that know narrow dtypes have them.
//!
//! Regions; their bodies also keep the rules above:
//! - `V0401`: there is one mode and one parameter for each operand.
//! - `V0402`: a parameter has the type that its mode makes of the operand's.
//! - `V0403`: the body has neither weights nor states.
//! - `V0404`: the body has neither matmuls nor custom ops nor regions.
//! - `V0405`: the body's outputs are the rows of the results.
//! - `V0406`: the body scatters only into `mut` parameters.
//! - `V0407`: a `mut` parameter is read by nothing and returned by nothing.
//! - `V0408`: the body's symbols are those of the graph around it, by name; bounds may differ.
//! - `V0409`: no value that the body computes has the region's symbol in its shape.
//!
//! Custom ops:
//! - `V0501`: mutated operand positions are ascending and in range; so are those at which it
//!   absorbs, and it mutates none of them. It scatters into states that it mutates, at operands that are
//!   i32 or i64.
//! - `V0502`: a call says what its definition says of mutation, rows, splitting, absorbing and scattering.
//! - `V0503`: the definition infers the call's result types from its operands and attributes.
//!
//! Steps of a module:
//! - `P0101`: every use is in exactly one step, and steps name only uses of the stitch.
//! - `P0102`: a use names a unique piece of the stitch.
//! - `P0103`: every node of the program order is in exactly one step, and no other node is.
//! - `P0104`: a step reads only what is declared or what earlier nodes define.
//! - `P0105`: nodes that touch one state, of which one mutates it, keep their order.
//! - `P0106`: a prologue step comes before all others and is one custom op that mutates nothing
//!   and depends on inputs alone.
//! - `P0107`: a split step is one op, after regions whose results it alone reads and before regions
//!   that alone read its own, at positions at which it absorbs.
//!
//! Unique pieces and their uses:
//! - `P0201`: the graph of a unique piece keeps the rules of graphs.
//! - `P0202`: a use has as many nodes and operands as its unique piece.
//! - `P0203`: an operand has the kind and type of the unique piece's.
//! - `P0204`: a node has the op of the unique piece's.
//! - `P0205`: a node's operands and results are those of the unique piece's, by position.
//! - `P0206`: different operands of a unique piece are different values.
//! - `P0207`: the weights of a unique piece are plain tensors: how they come about is the use's.
//! - `P0208`: what is read after a step is an output of its unique piece.
//!
//! Rows:
//! - `P0301`: what a piece computes has no other symbol in its shape than the piece's.
//! - `P0302`: no op of a piece lets a padding row reach a real one.
//! - `P0303`: an input, or a value that crosses from one step to another or leaves the graph, has
//!   symbols in its outermost dimension only.
//!
//! Slots:
//! - `P0401`: slots need steps, and a layout needs slots.
//! - `P0402`: a slot holds an input or a result of a step's node.
//! - `P0403`: a value has at most one slot.
//! - `P0404`: every input and every result has a slot.
//! - `P0405`: a slot has the kind that its value's readers make it.
//! - `P0406`: a slot lives from its value's definition to its last reader; an input's lives
//!   through the whole step and an output's to its end.
//!
//! Layout:
//! - `P0501`: the alignment is a power of two; offsets and the arena's bytes are multiples.
//! - `P0502`: there is one offset and one size for each slot, and one bound for each symbol.
//! - `P0503`: a bound is within its symbol's.
//! - `P0504`: a slot's bytes cover its type at the bounds.
//! - `P0505`: counts and inputs lie within the staged bytes, apart from each other.
//! - `P0506`: slots and staged bytes lie within the arena.
//!
//! That no two live values overlap is proved by the independent plan checker, not here.
//!
//! [`Literal::MAX_ELEMENTS`]: crate::literal::Literal::MAX_ELEMENTS

mod custom;
mod declarations;
mod graph;
mod integrity;
mod layout;
mod nodes;
mod pieces;
mod region;
mod rows;
mod same;
mod slots;
mod steps;
mod uses;

#[cfg(test)]
mod graph_tests;
#[cfg(test)]
mod module_tests;

pub(crate) use graph::verify_structure;
pub use graph::{verify_graph, verify_graph_with};

use crate::custom::OpDefs;
use crate::diagnostic::{Anchor, Diagnostics};
use crate::module::Module;
use crate::text::Names;

/// Checks a module: its graph, and as much of its plan as there is. Calls of custom ops are taken at
/// their word.
///
/// # Errors
/// All findings.
pub fn verify_module(module: &Module) -> Result<(), Diagnostics> {
    verify_module_with(module, &OpDefs::new())
}

/// Checks a module, and calls of the custom ops in `ops` against their definitions.
///
/// # Errors
/// All findings.
pub fn verify_module_with(module: &Module, ops: &OpDefs) -> Result<(), Diagnostics> {
    let graph = module.graph();
    verify_graph_with(graph, ops)?;
    let mut found = Diagnostics::default();
    if let Some(stitch) = module.stitch() {
        if let Some(order) = steps::check(graph, stitch, &mut found) {
            pieces::check(stitch, &mut found);
            uses::check(graph, stitch, &mut found);
            rows::check(graph, stitch, &mut found);
            if let Some(table) = module.slots() {
                slots::check(graph, stitch, &order, table, &mut found);
            }
        }
    } else if module.slots().is_some() {
        found.push("P0401", Anchor::Graph, "the module has slots but no steps; split it first");
    }
    match (module.slots(), module.layout()) {
        (Some(table), Some(plan)) => layout::check(graph, table, plan, &mut found),
        (None, Some(_)) => found.push(
            "P0401",
            Anchor::Graph,
            "the module has a layout but no slots; run destination passing first",
        ),
        _ => {}
    }
    Names::of(graph).locate(&mut found);
    found.into_result()
}
