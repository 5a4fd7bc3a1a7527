//! Each kernel of a graph against the definition of its op, on the operands that it had.

use super::bisection::Bisection;
use super::finding::WrongValue;
use super::values::{Exposed, Values, wrong_value};
use crate::trial::{FeedStep, Reference, TrialError, difference, run_node};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Node;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::ValueDef;

/// What the kernels of a graph do.
pub(super) enum Kernels {
    /// The first that does not what its op says.
    Wrong(WrongValue),
    /// All that could be looked at do. The others, by their ops: what has no reference implementation,
    /// and what reads a state that such an op wrote.
    Right { unseen: Vec<String> },
}

/// Runs a graph as it is, with the result of each node read back, and looks at each node.
pub(super) fn look(of: &Bisection<'_>, exposed: &Exposed) -> Result<Kernels, TrialError> {
    let values = exposed.on_device(of)?;
    let ops = of.trial.subject.registries.ops.defs();
    let reference = Reference::new(&exposed.graph, ops, of.trial.subject.weights())?;
    let mut states = match of.feed.steps.first() {
        Some(first) => reference.states(&first.sizes),
        None => Vec::new(),
    };
    let graph = &exposed.graph;
    let mut is_known = vec![true; states.len()];
    let mut unseen: Vec<String> = Vec::new();
    for (step, values) in of.feed.steps.iter().zip(&values) {
        for node in graph.nodes() {
            let data = graph.node(node);
            let state_of = |value| match graph.def(value) {
                ValueDef::State(at) => Some(at),
                _ => None,
            };
            let touched = data.operands.iter().filter_map(|&value| state_of(value));
            let made = match touched.clone().all(|at| is_known[at]) {
                true => made(of, exposed, (step, values), &reference, node, &mut states),
                false => None,
            };
            let Some(made) = made else {
                touched.for_each(|at| is_known[at] = false);
                let name = data.op.name().to_owned();
                if !unseen.contains(&name) {
                    unseen.push(name);
                }
                continue;
            };
            for (&value, expected) in data.results.iter().zip(&made) {
                let wrong = values.get(&value).and_then(|found| {
                    let name = value.to_string();
                    difference(&name, expected, found, of.tolerance)
                });
                if let Some(wrong) = wrong {
                    return Ok(Kernels::Wrong(wrong_value(graph, value, wrong)));
                }
            }
        }
    }
    Ok(Kernels::Right { unseen })
}

/// What the definition of a node makes of the operands that its kernel had, where it can be told.
fn made(
    of: &Bisection<'_>,
    exposed: &Exposed,
    (step, values): (&FeedStep, &Values),
    reference: &Reference<'_>,
    node: Node,
    states: &mut [Array],
) -> Option<Vec<Array>> {
    let graph = &exposed.graph;
    let none = Array { dtype: DType::F32, shape: vec![0], data: Vec::new() };
    let operand = |&value| match graph.def(value) {
        ValueDef::Input(at) => step.inputs.get(at),
        ValueDef::Weight(at) => reference.weights.get(at),
        // Whoever evaluates it takes the state itself.
        ValueDef::State(_) => Some(&none),
        ValueDef::Result { .. } => values.get(&value),
    };
    let operands = graph.node(node).operands.iter().map(operand).collect::<Option<Vec<_>>>()?;
    let ops = of.trial.subject.registries.ops.defs();
    run_node(graph, ops, node, &operands, &step.sizes, states).ok()
}
