//! Launched, replayed piecewise and replayed full: the same bits at the same sizes.

use crate::sequences::{Left, Sequences, Turn, set_states, step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_ir::dtype::DType;
use piecewise_ir::testing::{Rng, norm_error};
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::mode::{GraphMode, StepMode};

const SIZES: [u64; 10] = [1, 2, 3, 5, 8, 16, 17, 64, 300, 512];

fn large(dtype: DType, mode: GraphMode) -> Setup {
    Setup {
        dtype,
        mode,
        max_tokens: 512,
        max_length: 640,
        sizes: SIZES.to_vec(),
        threads: 2,
        ..Setup::default()
    }
}

/// `tokens` tokens over as many sequences as there may be, each of which wants its last row; then
/// a token of each.
fn two_steps<T: Target>(setup: &Setup, tokens: u64) -> Vec<Left> {
    let mut model = setup.build::<T>();
    let count = tokens.min(setup.max_sequences);
    let mut sequences = Sequences::of(&model);
    let mut rng = Rng::new(tokens);
    let zeros = vec![0; model.memory().states.bytes as usize];
    set_states(&mut model, &zeros);
    let share = |s: u64| tokens / count + u64::from(s < tokens % count);
    let steps: [Vec<Turn>; 2] = [false, true].map(|decode| {
        let turn = |s| Turn {
            sequence: s as usize,
            tokens: if decode { 1 } else { share(s) },
            rows: ChunkRows::Last,
            feedback: decode,
        };
        (0..count).map(turn).collect()
    });
    steps.iter().map(|turns| step(&mut model, &sequences.fill(turns, &mut rng))).collect()
}

/// At every size of a list, in every mode.
pub(crate) fn same_bits_in_every_mode<T: Target>(dtype: DType) {
    let run = |mode, tokens| {
        let sizes = (1..=4).chain([tokens].into_iter().filter(|&size| size > 4)).collect();
        two_steps::<T>(&Setup { sizes, ..large(dtype, mode) }, tokens)
    };
    for tokens in SIZES {
        let launched = run(GraphMode::None, tokens);
        for (mode, expected_mode) in
            [(GraphMode::Piecewise, StepMode::Piecewise), (GraphMode::Full, StepMode::Full)]
        {
            let replayed = run(mode, tokens);
            for (found, expected) in replayed.iter().zip(&launched) {
                assert_eq!(found.report.mode, expected_mode, "{tokens} tokens");
                assert_eq!(found.difference(expected), None, "{mode:?} at {tokens} tokens");
            }
        }
    }
}

/// The real rows do not depend on how far a step is padded, but for the order of sums where
/// another size has another kernel.
pub(crate) fn padded_equals_unpadded<T: Target>(dtype: DType, tolerance: f64) {
    for tokens in [1, 3, 5, 9, 33] {
        let run = |sizes: &[u64]| {
            let batches = vec![4];
            let setup = Setup { sizes: sizes.to_vec(), ..large(dtype, GraphMode::Piecewise) };
            two_steps::<T>(&Setup { batches, ..setup }, tokens)
        };
        let exact = run(&[tokens.min(4), tokens.max(5)]);
        for padded in [run(&[64]), run(&[512])] {
            for (found, expected) in padded.iter().zip(&exact) {
                let logits = |left: &Left| -> Vec<f64> {
                    let words = left.outputs[0].chunks_exact(4);
                    words.map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
                };
                let error = norm_error(&logits(found), &logits(expected));
                assert!(error <= tolerance, "{tokens} tokens, {:?}: {error}", found.report);
            }
        }
    }
}

/// A model that never splits runs full steps only, with the same bits as one that does.
pub(crate) fn never_split_equals_split<T: Target>(dtype: DType) {
    let split = Setup { dtype, mode: GraphMode::Full, ..Setup::default() };
    let whole = Setup { split_ops: Some(Vec::new()), ..split.clone() };
    let (a, b) = (split.module(), whole.module());
    assert_eq!(b.stitch().unwrap().split_op_count(), 0);
    assert!(b.stitch().unwrap().piece_count() < a.stitch().unwrap().piece_count());
    for tokens in [1, 3, 8, 17] {
        let expected = two_steps::<T>(&split, tokens);
        for (found, expected) in two_steps::<T>(&whole, tokens).iter().zip(&expected) {
            assert_eq!(found.report.mode, StepMode::Full);
            assert_eq!(found.difference(expected), None, "{tokens} tokens");
        }
    }
}
