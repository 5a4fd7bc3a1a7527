//! Random graphs keep the rules, and evaluate to the same whatever the rounding.

use crate::graphs::{RandomGraph, mix_ops, norm_error, random_arrays};
use piecewise_ir::eval::{Array, Evaluator, Rounding};
use piecewise_ir::graph::Graph;
use piecewise_ir::verify::verify_graph_with;
use proptest::prelude::*;

fn sizes(graph: &Graph, seed: u64) -> Vec<u64> {
    graph.symbols().values().map(|s| s.min + seed % (s.max - s.min + 1)).collect()
}

/// Outputs and states after the step.
fn evaluate(graph: &Graph, rounding: Rounding, seed: u64) -> Vec<Array> {
    let sizes = sizes(graph, seed);
    let mut given = random_arrays(graph, &sizes, seed).unwrap();
    let ops = mix_ops();
    let mut all = Evaluator::new(graph, &ops)
        .rounding(rounding)
        .run(&sizes, &given.inputs, &given.weights, &mut given.states)
        .unwrap();
    all.append(&mut given.states);
    all
}

fn options() -> impl Strategy<Value = RandomGraph> {
    (any::<[bool; 4]>(), 0usize..120).prop_map(|(on, nodes)| RandomGraph {
        nodes,
        matmuls: on[0],
        custom_ops: on[1],
        states: on[2],
        second_symbol: on[3],
        ..RandomGraph::default()
    })
}

proptest! {
    #[test]
    fn every_graph_verifies(options in options(), seed: u64) {
        let graph = options.generate(seed);
        if let Err(found) = verify_graph_with(&graph, &mix_ops()) {
            prop_assert!(false, "{found}");
        }
    }

    #[test]
    fn a_seed_makes_one_graph(options in options(), seed: u64) {
        prop_assert_eq!(options.generate(seed), options.generate(seed));
    }

    #[test]
    fn typed_values_are_of_their_dtype(seed: u64) {
        let graph = RandomGraph::default().generate(seed);
        for array in evaluate(&graph, Rounding::Typed, seed) {
            prop_assert_eq!(array.clone().rounded(), array);
        }
    }

    #[test]
    fn rows_beyond_the_count_change_nothing(seed: u64) {
        let graph = RandomGraph { second_symbol: false, ..RandomGraph::default() }.generate(seed);
        let (few, many) = (3usize, 5usize);
        let ops = mix_ops();
        let run = |rows: usize| {
            let sizes = [rows as u64];
            let mut given = random_arrays(&graph, &[many as u64], seed).unwrap();
            for (array, decl) in given.inputs.iter_mut().zip(graph.inputs()) {
                let width = array.row_len();
                let safe = decl.padding.map_or(f64::NAN, |p| p.to_f64());
                array.data[few * width..].fill(safe);
                array.data.truncate(rows * width);
                array.shape[0] = rows;
            }
            let outputs = Evaluator::new(&graph, &ops)
                .run(&sizes, &given.inputs, &given.weights, &mut given.states)
                .unwrap();
            (outputs, given.states)
        };
        let ((padded, padded_states), (real, states)) = (run(many), run(few));
        prop_assert_eq!(padded_states, states);
        for (padded, real) in padded.iter().zip(&real) {
            prop_assert_eq!(&padded.data[..real.data.len()], &real.data[..]);
        }
    }
}

/// The largest error that rounding makes in any output of the graphs of the first seeds. A graph that
/// subtracts what is nearly equal amplifies it without a bound, so that seeds of each run's own would find
/// one of thousands that fails; these are always the same.
fn worst_error(options: &RandomGraph) -> f64 {
    let errors = (0..256).flat_map(|seed| {
        let graph = options.generate(seed);
        let exact = evaluate(&graph, Rounding::Exact, seed);
        let typed = evaluate(&graph, Rounding::Typed, seed);
        exact.into_iter().zip(typed).map(|(e, t)| norm_error(&t.data, &e.data))
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn f32_rounding_stays_small() {
    let error = worst_error(&RandomGraph::f32());
    assert!(error < 5e-5, "norm-wise error {error}");
}

#[test]
fn half_precision_stays_finite_and_near() {
    let error = worst_error(&RandomGraph::default());
    assert!(error < 0.5, "norm-wise error {error}");
}

#[test]
fn options_are_kept() {
    let plain = RandomGraph {
        matmuls: false,
        custom_ops: false,
        states: false,
        second_symbol: false,
        ..RandomGraph::f32()
    };
    let mnemonics = |options: &RandomGraph| -> Vec<&'static str> {
        let graphs = (0..40).map(|seed| options.generate(seed));
        let mut all: Vec<_> = graphs
            .flat_map(|g| g.nodes().map(|n| g.node(n).op.mnemonic()).collect::<Vec<_>>())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    for left_out in ["matmul", "custom", "scatter"] {
        assert!(!mnemonics(&plain).contains(&left_out));
        assert!(mnemonics(&RandomGraph::default()).contains(&left_out));
    }
}

#[test]
fn norm_error_of_faulty_values_is_infinite() {
    assert_eq!(norm_error(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
    assert_eq!(norm_error(&[0.0, 0.0], &[3.0, 4.0]), 1.0);
    assert_eq!(norm_error(&[f64::NAN], &[1.0]), f64::INFINITY);
    assert_eq!(norm_error(&[1.0], &[]), f64::INFINITY);
}
