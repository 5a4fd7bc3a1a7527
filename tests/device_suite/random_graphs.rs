//! Random graphs that look like steps of a model, held against the evaluator and each other.

use crate::any_graph::{MODES, RandomWeights, build, elements, set_states, step};
use crate::target::{AbsorbingCpu, Cpu, Target};
use crate::user_op::registry;
use piecewise_ir::eval::Evaluator;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;

use piecewise_runtime::pipeline::plan;
use piecewise_runtime::words::{CompileLevel, GraphMode, StepMode};
use piecewise_testing::{RandomArrays, RandomGraph, mix_ops, norm_error, random_arrays, soak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZES: [u64; 3] = [4, 16, RandomGraph::MAX_T];

/// A random graph, planned, with what it is given. The arrays are the first graph's: passes may
/// drop a table that an input indexes, and with it a bound on the indices.
struct Case {
    graph: Graph,
    module: Arc<Module>,
    arrays: RandomArrays,
    rows: u64,
    seed: u64,
}

/// The random graph of `seed`, planned.
pub(crate) fn random_module(seed: u64) -> Module {
    Module::clone(&Case::new(seed).module)
}

impl Case {
    fn new(seed: u64) -> Self {
        let options = RandomGraph { second_symbol: false, nodes: 40, ..RandomGraph::f32() };
        let graph = options.generate(seed);
        let rows = 1 + seed % RandomGraph::MAX_T;
        let arrays = random_arrays(&graph, &[rows], seed).unwrap();
        let (module, _) = plan(graph.clone(), CompileLevel::Piecewise, None, Vec::new()).unwrap();
        Self { graph, module: Arc::new(module), arrays, rows, seed }
    }

    fn outputs<T: Target>(&self, (mode, step_mode): (GraphMode, StepMode)) -> Vec<Vec<u8>> {
        let (max, weights) = (RandomGraph::MAX_T, RandomWeights(self.seed));
        let mut model = build::<T>(&self.module, &registry(), mode, &SIZES, max, weights);
        set_states(&mut model, &self.arrays.states);
        step(&mut model, self.rows, &self.arrays.inputs, step_mode)
    }
}

/// Calls `case` with the seeds of a target's graphs, on every processor.
fn each_seed<T: Target>(case: impl Fn(u64) + Sync) {
    let (graphs, next) = (u64::from(soak(T::RANDOM_GRAPHS)), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        seed if seed < graphs => case(seed),
                        _ => break,
                    }
                }
            });
        }
    });
    println!("{}: {graphs} random graphs in {} modes", T::NAME, MODES.len());
}

/// Launched, piecewise and full give the same bits, close to the evaluator's numbers.
pub(crate) fn equal_the_evaluator<T: Target>() {
    each_seed::<T>(|seed| {
        let case = Case::new(seed);
        let Case { graph, arrays, rows, .. } = &case;
        let (ops, mut states) = (mix_ops(), arrays.states.clone());
        let expected = Evaluator::new(graph, &ops)
            .run(&[*rows], &arrays.inputs, &arrays.weights, &mut states)
            .unwrap();
        let of_modes = MODES.map(|mode| case.outputs::<T>(mode));
        assert!(of_modes[1..].iter().all(|other| *other == of_modes[0]), "seed {seed}");
        for (found, expected) in of_modes[0].iter().zip(&expected) {
            let error = norm_error(&elements(expected.dtype, found), &expected.data);
            assert!(error < 1e-4, "seed {seed}: {error}");
        }
    });
}

#[test]
fn absorbing_changes_no_bit() {
    each_seed::<AbsorbingCpu>(|seed| {
        let case = Case::new(seed);
        let mode = (GraphMode::Piecewise, StepMode::Piecewise);
        assert_eq!(case.outputs::<Cpu>(mode), case.outputs::<AbsorbingCpu>(mode), "seed {seed}");
    });
}
