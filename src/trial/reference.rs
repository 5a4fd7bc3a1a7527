//! A graph by the reference evaluator, step by step.

use super::error::TrialError;
use super::feed::Feed;
use piecewise_backend::cpu::normal_numbers;
use piecewise_backend::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::custom::OpDefs;
use piecewise_ir::entity::{Entity, Node};
use piecewise_ir::eval::{Array, EvalError, Evaluator, Rounding, evaluate_recipe};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::types::TensorType;

/// A graph with its weights as arrays.
#[derive(Debug)]
pub(crate) struct Reference<'a> {
    graph: &'a Graph,
    ops: &'a OpDefs,
    pub(crate) weights: Vec<Array>,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        ops: &'a OpDefs,
        source: &dyn WeightSource,
    ) -> Result<Self, TrialError> {
        let mut failed = None;
        let weights = graph.weights().iter().map(|weight| {
            evaluate_recipe(&weight.recipe, &mut |name: &str, ty: &TensorType| {
                tensor(source, name, ty).map_err(|error| {
                    let reason = error.to_string();
                    failed = Some(error);
                    EvalError::Recipe { reason }
                })
            })
        });
        let weights = weights.collect::<Result<Vec<_>, _>>();
        match (weights, failed) {
            (_, Some(error)) => Err(error.into()),
            (weights, None) => Ok(Self { graph, ops, weights: weights? }),
        }
    }

    /// States as they are before the first step.
    pub(crate) fn states(&self, sizes: &[u64]) -> Vec<Array> {
        let states = self.graph.states().iter();
        let zeros = states.map(|state| {
            let ty = self.graph.ty(state.value);
            Array::zeros(ty.dtype, ty.dims(sizes).iter().map(|&n| n as usize).collect())
        });
        zeros.collect()
    }

    /// Every output of each step.
    pub(crate) fn run(&self, feed: &Feed) -> Result<Vec<Vec<Array>>, TrialError> {
        let Some(first) = feed.steps.first() else { return Ok(Vec::new()) };
        let mut states = self.states(&first.sizes);
        let evaluator = Evaluator::new(self.graph, self.ops).rounding(Rounding::Typed);
        let steps = feed.steps.iter().map(|step| {
            Ok(evaluator.run(&step.sizes, &step.inputs, &self.weights, &mut states)?)
        });
        steps.collect()
    }
}

fn tensor(source: &dyn WeightSource, name: &str, ty: &TensorType) -> Result<Array, WeightError> {
    let dims = ty.dims(&[]);
    let shape = Vec::from_iter(dims.iter().map(|&n| n as usize));
    Ok(match source.tensor(TensorSpec { name, dtype: ty.dtype, shape: &dims })? {
        TensorSource::Bytes(bytes) => Array::from_bytes(ty.dtype, shape, &bytes),
        TensorSource::Normal { std, seed } => {
            let numbers = normal_numbers(name, seed, std, shape.iter().product());
            let data = numbers.into_iter().map(f64::from).collect();
            Array { dtype: ty.dtype, shape, data }.rounded()
        }
    })
}

/// One node of a graph by itself: its operands are given, and states are those of the graph.
pub(crate) fn run_node(
    graph: &Graph,
    ops: &OpDefs,
    node: Node,
    operands: &[&Array],
    sizes: &[u64],
    states: &mut [Array],
) -> Result<Vec<Array>, TrialError> {
    let data = graph.node(node);
    let mut alone = Graph::with_symbols_of(graph.name.clone(), graph);
    let (mut inputs, mut kept, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (i, &operand) in data.operands.iter().enumerate() {
        let ty = graph.ty(operand).clone();
        // An operand that is named twice is one value.
        if let Some(known) = data.operands[..i].iter().position(|&other| other == operand) {
            values.push(values[known]);
            continue;
        }
        values.push(match graph.def(operand) {
            ValueDef::State(at) => {
                kept.push(at);
                alone.add_state(graph.states()[at].name.clone(), ty, None)
            }
            _ => {
                inputs.push(operands[i].clone());
                alone.add_input(format!("a{}", operand.index()), ty, None, None)
            }
        });
    }
    let new = alone.push_node(data.op.clone(), values, graph.result_types(node), data.loc.clone());
    let results = alone.node(new).results.clone();
    alone.set_outputs(results);
    let mut held = Vec::from_iter(kept.iter().map(|&at| states[at].clone()));
    let evaluator = Evaluator::new(&alone, ops).rounding(Rounding::Typed);
    let made = evaluator.run(sizes, &inputs, &[], &mut held)?;
    for (at, state) in kept.into_iter().zip(held) {
        states[at] = state;
    }
    Ok(made)
}
