//! Graphs without inputs: derived weights such as rope tables.

use super::error::EvalError;
use super::{Array, Evaluator, Rounding};
use crate::custom::OpDefs;
use crate::graph::Graph;

/// The single output of a graph without symbols, inputs, weights and states, every value rounded
/// to its dtype ([`Rounding::Typed`]).
///
/// # Errors
/// When the graph declares any of these, has not exactly one output, or can't be evaluated.
pub fn evaluate_constant(graph: &Graph) -> Result<Array, EvalError> {
    let not_constant =
        |problem: String| EvalError::NotConstant { graph: graph.name.clone(), problem };
    let declared = [
        ("symbols", graph.symbols().len()),
        ("inputs", graph.inputs().len()),
        ("weights", graph.weights().len()),
        ("states", graph.states().len()),
    ];
    if let Some((what, n)) = declared.into_iter().find(|d| d.1 > 0) {
        return Err(not_constant(format!("has {n} {what}, but must have none")));
    }
    let ops = OpDefs::new();
    let outputs =
        Evaluator::new(graph, &ops).rounding(Rounding::Typed).run(&[], &[], &[], &mut [])?;
    let n = outputs.len();
    let mut outputs = outputs.into_iter();
    match (outputs.next(), n) {
        (Some(output), 1) => Ok(output),
        _ => Err(not_constant(format!("has {n} outputs, but must have one"))),
    }
}
