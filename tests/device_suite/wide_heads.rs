//! Heads as wide as those of large models, for which a device may have kernels of their own: what
//! the CPU computes, but for the order of sums.

use crate::any_graph::elements;
use crate::sequences::{Left, Sequences, Turn, set_states, step};
use crate::small_decoder::Setup;
use crate::target::{Cpu, Target};
use piecewise_ir::dtype::DType;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::words::GraphMode;
use piecewise_testing::{Rng, norm_error};

/// Tokens of each sequence in each step: prompts beside decodes, chunks that go on, steps of
/// decodes, and a last one that sees many keys.
const STEPS: [[u64; 4]; 7] = [
    [100, 37, 3, 1],
    [1, 64, 90, 2],
    [1, 1, 1, 1],
    [250, 1, 2, 1],
    [255, 1, 1, 1],
    [33, 1, 1, 30],
    [1, 1, 1, 255],
];

fn run<T: Target>(setup: &Setup, steps: &[[u64; 4]]) -> Vec<Left> {
    let mut model = setup.build::<T>();
    let zeros = vec![0; model.memory().states.bytes as usize];
    set_states(&mut model, &zeros);
    let mut sequences = Sequences::of(&model);
    let mut rng = Rng::new(3);
    let mut left = Vec::new();
    for tokens in steps {
        let turn = |(sequence, &tokens): (usize, &u64)| Turn {
            sequence,
            tokens,
            rows: ChunkRows::Last,
            feedback: false,
        };
        let turns: Vec<Turn> =
            tokens.iter().enumerate().filter(|(_, n)| **n > 0).map(turn).collect();
        left.push(step(&mut model, &sequences.fill(&turns, &mut rng)));
    }
    left
}

/// With tables of few pages and of many: close to the CPU, padded or not, and the same bits launched
/// as replayed.
pub(crate) fn equal_the_cpu<T: Target>(head_dim: u64, tolerance: f64) {
    for (max_length, steps) in [(128, &STEPS[..1]), (1024, &STEPS[..])] {
        let mut exact: Vec<u64> = steps.iter().map(|tokens| tokens.iter().sum()).collect();
        exact.extend([4, 320]);
        exact.sort_unstable();
        exact.dedup();
        let setup = |mode, sizes: &[u64]| Setup {
            dtype: DType::BF16,
            head_dim,
            max_tokens: 320,
            max_length,
            mode,
            sizes: sizes.to_vec(),
            threads: 2,
            ..Setup::default()
        };
        let expected = run::<Cpu>(&setup(GraphMode::None, &exact), steps);
        let launched = run::<T>(&setup(GraphMode::None, &exact), steps);
        let replayed = run::<T>(&setup(GraphMode::Full, &exact), steps);
        let padded = run::<T>(&setup(GraphMode::Full, &[4, 320]), steps);
        for (found, expected) in launched.iter().chain(&padded).zip(expected.iter().cycle()) {
            for (what, dtype, a, b) in [
                ("logits", DType::F32, &found.outputs[0], &expected.outputs[0]),
                ("states", DType::BF16, &found.states, &expected.states),
            ] {
                let error = norm_error(&elements(dtype, a), &elements(dtype, b));
                assert!(error <= tolerance, "{what}, {:?}: {error}", found.report);
            }
        }
        for (found, expected) in replayed.iter().zip(&launched) {
            assert_eq!(found.difference(expected), None);
        }
    }
}
