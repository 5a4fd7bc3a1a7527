//! Random graphs through the whole pipeline: split then stitched is unsplit, plans are proven,
//! and every launch list of an allowed lowering fits them.

use crate::support::launches::{absorbing, plain};
use piecewise_ir::entity::Value;
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step};
use piecewise_ir::verify::verify_module;
use piecewise_passes::check::{check_launches, check_plan};
use piecewise_passes::plan::{PlanOptions, plan_arena};
use piecewise_passes::rewrite::Rewrites;
use piecewise_passes::{PassContext, PassManager, Pipeline, Registry};
use piecewise_testing::lifetimes::assign_node_granular_slots;
use piecewise_testing::{RandomGraph, mix_ops, random_arrays, soak};
use proptest::prelude::*;
use std::collections::BTreeMap;

const OPTIMIZED: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse,split,destination,plan";
const FUSED: &str = "fuse,split,destination,plan";
const UNFUSED: &str = "split,destination,plan";

fn through(graph: Graph, pipeline: &str) -> Module {
    through_in(graph, pipeline, &mut PassContext::of(mix_ops()))
}

fn through_in(graph: Graph, pipeline: &str, cx: &mut PassContext) -> Module {
    let mut module = Module::new(graph);
    let pipeline = Pipeline::parse(pipeline).expect("a pipeline");
    let mut manager = PassManager::new(&pipeline, &Registry::standard()).expect("known passes");
    manager.run(&mut module, cx).expect("the passes run");
    module
}

fn sizes(graph: &Graph, t: u64, r: u64) -> Vec<u64> {
    [t, r][..graph.symbols().len()].to_vec()
}

type Bits = (Vec<Vec<u64>>, Vec<Vec<u64>>);

fn bits(arrays: &[Array]) -> Vec<Vec<u64>> {
    arrays.iter().map(|a| a.data.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Outputs and states of the whole graph.
fn unsplit(graph: &Graph, sizes: &[u64], seed: u64) -> Bits {
    let ops = mix_ops();
    let mut given = random_arrays(graph, sizes, seed).expect("recipes evaluate");
    let evaluator = Evaluator::new(graph, &ops).rounding(Rounding::Typed);
    let outputs =
        evaluator.run(sizes, &given.inputs, &given.weights, &mut given.states).expect("evaluates");
    (bits(&outputs), bits(&given.states))
}

/// The same from the unique pieces in the order of the step, through operand lists alone.
fn stitched(module: &Module, sizes: &[u64], seed: u64) -> Bits {
    let ops = mix_ops();
    let graph = module.graph();
    let mut given = random_arrays(graph, sizes, seed).expect("recipes evaluate");
    let mut memory: BTreeMap<Value, Array> = BTreeMap::new();
    let declared = graph.inputs().iter().map(|i| i.value).zip(given.inputs.drain(..));
    memory.extend(declared);
    memory.extend(graph.weights().iter().map(|w| w.value).zip(given.weights.drain(..)));
    memory.extend(graph.states().iter().map(|s| s.value).zip(given.states.drain(..)));
    let stitch = module.stitch().expect("split");
    for step in &stitch.steps {
        let usage = &stitch.uses[step.id()];
        let piece = &stitch.unique[usage.unique].graph;
        let positions = stitch.unique[usage.unique].operands();
        let outside = |inside: Value| {
            usage.operands[positions.iter().position(|&p| p == inside).expect("an operand")]
        };
        let read = |v: Value| memory[&outside(v)].clone();
        let inputs: Vec<Array> = piece.inputs().iter().map(|i| read(i.value)).collect();
        let weights: Vec<Array> = piece.weights().iter().map(|w| read(w.value)).collect();
        let mut states: Vec<Array> = piece.states().iter().map(|s| read(s.value)).collect();
        let evaluator = Evaluator::new(piece, &ops).rounding(Rounding::Typed);
        let outputs = evaluator.run(sizes, &inputs, &weights, &mut states).expect("evaluates");
        let returned = piece.outputs().iter().map(|&v| outside(v)).zip(outputs);
        let mutated = piece.states().iter().map(|s| outside(s.value)).zip(states);
        let written: Vec<(Value, Array)> = returned.chain(mutated).collect();
        memory.extend(written);
    }
    let at =
        |values: Vec<Value>| -> Vec<Array> { values.iter().map(|v| memory[v].clone()).collect() };
    let states = graph.states().iter().map(|s| s.value).collect();
    (bits(&at(graph.outputs().to_vec())), bits(&at(states)))
}

/// The largest sum of aligned bytes that the slots' lifetimes make live at once.
fn largest_live_sum(module: &Module) -> u64 {
    let (slots, layout) = (module.slots().expect("slots"), module.layout().expect("layout"));
    let sizes: Vec<u64> = layout.sizes.iter().map(|s| s.next_multiple_of(layout.align)).collect();
    let last = slots.slots.values().map(|s| s.live.end).max().unwrap_or(0);
    let counts = (4 * module.graph().symbols().len() as u64).next_multiple_of(layout.align);
    let live_at = |at: usize| {
        let live = slots
            .slots
            .values()
            .zip(&sizes)
            .filter(|(s, _)| s.live.start <= at && at <= s.live.end);
        counts + live.map(|(_, size)| size).sum::<u64>()
    };
    (0..=last).map(live_at).max().unwrap_or(counts)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak(2000), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn split_then_stitched_is_unsplit(
        seed: u64, second_symbol: bool, fused: bool, nodes in 20usize..200, t in 1u64..12, r in 1u64..6,
    ) {
        let graph = RandomGraph { second_symbol, nodes, ..RandomGraph::default() }.generate(seed);
        let sizes = sizes(&graph, t, r);
        let module = through(graph, if fused { OPTIMIZED } else { UNFUSED });
        prop_assert_eq!(verify_module(&module), Ok(()));
        let expected = unsplit(module.graph(), &sizes, seed);
        prop_assert!(stitched(&module, &sizes, seed) == expected, "some bits differ");
    }

    /// A bisection ends within fusion: after any of its decisions the graph still runs, and alike.
    #[test]
    fn fused_up_to_any_decision_is_unfused(
        seed: u64, second_symbol: bool, nodes in 10usize..120, limit in 0u64..200, t in 1u64..12, r in 1u64..6,
    ) {
        let graph = RandomGraph { second_symbol, nodes, ..RandomGraph::default() }.generate(seed);
        let sizes = sizes(&graph, t, r);
        let expected = unsplit(&graph, &sizes, seed);
        let rewrites = Rewrites::only_first(limit);
        let mut cx = PassContext { rewrites, ..PassContext::of(mix_ops()) };
        let module = through_in(graph, FUSED, &mut cx);
        prop_assert!(cx.rewrites.done() <= limit);
        prop_assert!(unsplit(module.graph(), &sizes, seed) == expected, "some bits differ");
        prop_assert!(stitched(&module, &sizes, seed) == expected, "some bits differ in pieces");
    }

    #[test]
    fn plans_are_proven_and_fit_the_launches_of_every_lowering(
        seed: u64, second_symbol: bool, fused: bool, nodes in 10usize..200,
    ) {
        let graph = RandomGraph { second_symbol, nodes, ..RandomGraph::default() }.generate(seed);
        let module = through(graph, if fused { OPTIMIZED } else { UNFUSED });
        prop_assert_eq!(check_plan(&module), Ok(()));
        prop_assert_eq!(check_launches(&module, &plain(&module)), Ok(()));
        prop_assert_eq!(check_launches(&module, &absorbing(&module)), Ok(()));
    }
}

#[test]
fn node_granular_plans_of_random_graphs_are_refused_where_launches_absorb() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut module = through(RandomGraph::default().generate(seed), OPTIMIZED);
        assign_node_granular_slots(&mut module).expect("split");
        plan_arena(&mut module, &PlanOptions::default()).expect("fits");
        assert_eq!(check_launches(&module, &plain(&module)), Ok(()));
        refused += usize::from(check_launches(&module, &absorbing(&module)).is_err());
    }
    assert!(refused > 0, "some plan breaks");
}

#[test]
fn arenas_of_a_thousand_random_graphs_are_close_to_the_largest_live_sum() {
    let mut ratios: Vec<f64> = (0..1000)
        .map(|seed| {
            let nodes = 20 + (seed % 100) as usize;
            let graph = RandomGraph { nodes, ..RandomGraph::default() }.generate(seed);
            let module = through(graph, "fuse,split,destination,plan");
            let layout = module.layout().expect("planned");
            layout.bytes as f64 / largest_live_sum(&module) as f64
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[500] <= 1.1, "median {}", ratios[500]);
    assert!(ratios[999] <= 1.5, "worst {}", ratios[999]);
}

/// What the properties above are worth: random graphs of this size are cut in several places.
#[test]
fn random_graphs_are_cut() {
    let cuts = |seed| {
        let graph = RandomGraph { nodes: 160, ..RandomGraph::default() }.generate(seed);
        through(graph, OPTIMIZED).stitch().expect("split").split_op_count()
    };
    let cuts: Vec<usize> = (0..40).map(cuts).collect();
    assert!(cuts.iter().filter(|&&n| n > 0).count() >= 20, "{cuts:?}");
    assert!(cuts.iter().any(|&n| n > 2), "{cuts:?}");
}

/// And what some of their split ops make goes into a region that runs with them.
#[test]
fn regions_of_random_graphs_run_with_split_ops() {
    let split_ops_with_regions = |seed| {
        let graph = RandomGraph { nodes: 160, ..RandomGraph::default() }.generate(seed);
        let module = through(graph, OPTIMIZED);
        let stitch = module.stitch().expect("split");
        let is_split = |step: &&Step| matches!(step, Step::Split(_));
        let splits = stitch.steps.iter().filter(is_split).map(|step| &stitch.uses[step.id()]);
        splits.filter(|usage| usage.nodes.len() > 1).count()
    };
    assert!((0..40).map(split_ops_with_regions).sum::<usize>() > 3);
}
