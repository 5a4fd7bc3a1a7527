//! Every value of a graph, by the reference evaluator.

use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::Graph;
use piecewise_testing::{mix_ops, random_arrays};

/// Every value but states, by value, of arrays that follow from `seed`.
pub(crate) fn evaluate(graph: &Graph, sizes: &[u64], seed: u64) -> Vec<Option<Array>> {
    let mut all = graph.clone();
    let computed: Vec<Value> = graph.nodes().flat_map(|n| graph.node(n).results.clone()).collect();
    all.set_outputs(computed.clone());
    let sizes = &sizes[..graph.symbols().len()];
    let given = random_arrays(graph, sizes, seed).unwrap();
    let ops = mix_ops();
    let evaluator = Evaluator::new(&all, &ops).rounding(Rounding::Typed);
    let mut states = given.states.clone();
    let outputs = evaluator.run(sizes, &given.inputs, &given.weights, &mut states).unwrap();
    let inputs = graph.inputs().iter().map(|d| d.value).zip(given.inputs);
    let weights = graph.weights().iter().map(|d| d.value).zip(given.weights);
    let mut values = vec![None; graph.value_count()];
    for (value, array) in inputs.chain(weights).chain(computed.into_iter().zip(outputs)) {
        values[value.index()] = Some(array);
    }
    values
}
