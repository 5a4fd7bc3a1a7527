//! Launched, replayed piecewise and replayed full: the same bits at the same sizes.

use crate::sequences::{Left, Sequences, Turn, set_states, step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_ir::dtype::DType;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{Checks, GraphMode, StepMode};
use piecewise_testing::{Rng, norm_error};

/// Sizes at, beside and between what kernels are cut at; each target takes those that it is quick
/// enough for, and its largest step.
const SIZES: [u64; 11] = [1, 2, 3, 5, 8, 16, 17, 64, 300, 512, 2048];

fn sizes<T: Target>() -> Vec<u64> {
    let smaller = SIZES.into_iter().filter(|&size| size < T::MOST_TOKENS);
    smaller.chain([T::MOST_TOKENS]).collect()
}

/// Steps of up to `most` tokens, spread over the sequences, and one more each.
fn large(dtype: DType, mode: GraphMode, most: u64, sizes: Vec<u64>) -> Setup {
    let default = Setup::default();
    let max_length = (most / default.max_sequences + 16).next_multiple_of(16);
    Setup { dtype, mode, max_tokens: most, max_length, sizes, threads: 2, ..default }
}

/// `tokens` tokens over as many sequences as there may be, each of which wants its last row; then
/// a token of each.
pub(crate) fn two_steps(model: &mut CompiledModel, tokens: u64) -> Vec<Left> {
    let mut sequences = Sequences::of(model);
    let count = tokens.min(sequences.list.len() as u64);
    let mut rng = Rng::new(tokens);
    let zeros = vec![0; model.memory().states.bytes as usize];
    set_states(model, &zeros);
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
    steps.iter().map(|turns| step(model, &sequences.fill(turns, &mut rng))).collect()
}

/// At every size of a list, in every mode. Says how many steps were compared.
pub(crate) fn same_bits_in_every_mode<T: Target>(dtype: DType) {
    let sizes = sizes::<T>();
    let run = |mode| {
        let mut captured = sizes.clone();
        captured.push(4);
        captured.sort_unstable();
        let mut model = large(dtype, mode, T::MOST_TOKENS, captured).build::<T>();
        Vec::from_iter(sizes.iter().map(|&tokens| two_steps(&mut model, tokens)))
    };
    let launched = run(GraphMode::None);
    for (mode, expected_mode) in
        [(GraphMode::Piecewise, StepMode::Piecewise), (GraphMode::Full, StepMode::Full)]
    {
        let (mut compared, mut replays) = (0, 0);
        for ((tokens, expected), found) in sizes.iter().zip(&launched).zip(run(mode)) {
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(expected.report.mode, StepMode::None);
                assert_eq!(found.difference(expected), None, "{mode:?} at {tokens} tokens");
                compared += 1;
                replays += usize::from(found.report.mode == expected_mode);
            }
        }
        println!(
            "{} {dtype} {mode:?}: {compared} steps compared with launched ones at {sizes:?}, \
             {replays} replays",
            T::NAME
        );
        assert_eq!((compared, replays), (2 * sizes.len(), 2 * sizes.len()), "{mode:?}");
    }
}

/// How wide a block table is makes no difference but for the order of sums: of a wide one the columns
/// in use are staged.
pub(crate) fn a_wide_block_table_is_a_narrow_one<T: Target>() {
    let kv_rows = Some(4 * 96);
    for poison in [false, true] {
        let checks = Checks { poison, ..Checks::default() };
        let run = |max_length| {
            let setup = Setup { max_length, kv_rows, checks, ..Setup::default() };
            two_steps(&mut setup.build::<T>(), 37)
        };
        for (wide, narrow) in run(1 << 20).iter().zip(&run(96)) {
            let logits = |left: &Left| -> Vec<f64> {
                let words = left.outputs[0].chunks_exact(4);
                words.map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
            };
            let error = norm_error(&logits(wide), &logits(narrow));
            assert!(error <= 1e-5, "{error}: {:?}", wide.report);
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
        let expected = two_steps(&mut split.build::<T>(), tokens);
        for (found, expected) in two_steps(&mut whole.build::<T>(), tokens).iter().zip(&expected) {
            assert_eq!(found.report.mode, StepMode::Full);
            assert_eq!(found.difference(expected), None, "{tokens} tokens");
        }
    }
}
