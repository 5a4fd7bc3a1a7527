//! Regions cut in parts: each part computes the bits of the whole.

use crate::common;
use crate::values::evaluate;
use piecewise_ir::entity::{Entity, Node};
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_kernels::cuda::{PartParam, RegionPart};
use piecewise_testing::{RandomGraph, mix_ops};

const PASSES: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";
const SIZES: [u64; 2] = [5, 3];

/// Holds the part of a region that makes result `wanted` from others against the whole; says
/// whether all that it reads is known.
fn check(graph: &Graph, node: Node, wanted: usize, values: &[Option<Array>]) -> bool {
    let data = graph.node(node);
    let Op::Region(region) = &data.op else { return false };
    let given: Vec<usize> = (0..data.results.len()).filter(|&i| i != wanted).collect();
    let Ok(part) = RegionPart::of(region, &[wanted], &given) else { return false };
    let mut alone = Graph::with_symbols_of("part", graph);
    let (mut operands, mut arrays) = (Vec::new(), Vec::new());
    for (i, param) in part.params.iter().enumerate() {
        let value = match *param {
            PartParam::Operand(i) => data.operands[i],
            PartParam::Result(i) => data.results[i],
        };
        let Some(array) = &values[value.index()] else { return false };
        operands.push(alone.add_input(format!("p{i}"), graph.ty(value).clone(), None, None));
        arrays.push(array.clone());
    }
    let result = data.results[wanted];
    let op = Op::Region(Box::new(part.region));
    let made = alone.push(op, operands, graph.ty(result).clone(), Loc::default());
    alone.set_outputs(vec![made]);
    let ops = mix_ops();
    let evaluator = Evaluator::new(&alone, &ops).rounding(Rounding::Typed);
    let made = evaluator.run(&SIZES[..graph.symbols().len()], &arrays, &[], &mut []).unwrap();
    let bits = |a: &Array| -> Vec<u64> { a.data.iter().map(|x| (x + 0.0).to_bits()).collect() };
    let expected = values[result.index()].as_ref().unwrap();
    assert_eq!(bits(&made[0]), bits(expected), "result {wanted} of {region:#?}");
    true
}

#[test]
fn parts_of_random_regions_have_the_bits_of_the_whole() {
    let (mut parts, mut given) = (0, 0);
    for seed in 0..400 {
        let mut module = Module::new(RandomGraph::default().generate(seed));
        common::run(&mut module, PASSES);
        let graph = module.graph();
        let values = evaluate(graph, &SIZES, seed);
        for node in graph.nodes() {
            let results = graph.node(node).results.len();
            for wanted in 0..results {
                let checked = check(graph, node, wanted, &values);
                parts += usize::from(checked);
                given += usize::from(checked && results > 1);
            }
        }
    }
    assert!(parts > 400 && given > 100, "{parts} parts, {given} of regions of several results");
}
