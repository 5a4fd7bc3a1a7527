//! Over a long random sequence of sizes and batch mixes, with poison on, each step equals a
//! launched run of the same sizes that starts from a copy of the same states and inputs. In the modes
//! that replay whole steps the same holds of uniform batches of one to eight tokens for each sequence. Now and then the
//! model is suspended and resumed between two steps, and its sequences begin anew.

use crate::any_graph::elements;
use crate::sequences::{Left, Sequences, Turn, set_states, states, step};
use crate::small_decoder::{Setup, WEIGHTS};
use crate::target::Target;
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::dtype::DType;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::memory::KvPoison;
use piecewise_runtime::words::{Checks, GraphMode, StepMode, SuspendedWeights};
use piecewise_testing::{Rng, norm_error, soak};
use std::cell::RefCell;
use std::collections::BTreeSet;

const STEPS: u32 = 1000;

/// The turns of a step: mostly decode, mostly within the largest size, all sorts of lengths.
pub(crate) fn turns(sequences: &mut Sequences, setup: &Setup, rng: &mut Rng) -> Vec<Turn> {
    let decode = rng.one_in(2);
    let mut left = if rng.one_in(12) { setup.max_tokens } else { 1 + rng.below(48) as u64 };
    let mut turns = Vec::new();
    for sequence in 0..sequences.list.len() {
        if (rng.one_in(3) && sequence > 0) || left == 0 {
            continue;
        }
        if sequences.list[sequence].length + left.min(32) > setup.max_length {
            sequences.restart(sequence);
        }
        let room = setup.max_length - sequences.list[sequence].length;
        let long = 1 + rng.below(left.min(room).min(40) as usize) as u64;
        let tokens = if decode || rng.one_in(2) { 1 } else { long };
        let rows = match decode || !rng.one_in(4) {
            true => ChunkRows::Last,
            false => ChunkRows::None,
        };
        let feedback = tokens == 1 && sequences.can_feed_back(sequence) && rng.one_in(2);
        turns.push(Turn { sequence, tokens, rows, feedback });
        left -= tokens;
    }
    turns
}

/// The turns of a uniform batch: any number of sequences and of tokens for each, of which none, the
/// last or all are wanted.
fn uniform_turns(sequences: &mut Sequences, setup: &Setup, rng: &mut Rng) -> Vec<Turn> {
    let tokens = 1 + rng.below(8) as u64;
    let mut turns = Vec::new();
    for sequence in 0..1 + rng.below(sequences.list.len()) {
        if sequences.list[sequence].length + tokens > setup.max_length {
            sequences.restart(sequence);
        }
        let rows = [ChunkRows::Last, ChunkRows::All, ChunkRows::None][rng.below(3)];
        let feedback = tokens == 1 && sequences.can_feed_back(sequence) && rng.one_in(2);
        turns.push(Turn { sequence, tokens, rows, feedback });
    }
    turns
}

/// In a soak every check there is. Compare launches each step once more, as the tests do by themselves.
fn checks() -> Checks {
    Checks { poison: true, addresses: true, compare: soak(1) > 1 }
}

/// At least [`STEPS`] steps in `mode`; the launched run has `other_threads` threads.
pub(crate) fn equal_launched_steps<T: Target>(
    mode: GraphMode,
    dtype: DType,
    threads: usize,
    other_threads: usize,
) {
    let setup = Setup { mode, dtype, checks: checks(), threads, ..Setup::default() };
    equal_launched::<T>(&setup, other_threads, &mut turns, &|_| {});
}

/// Uniform batches of one to eight tokens for each sequence, some beside sizes that only their own
/// graphs have, and mixed steps between them.
pub(crate) fn equal_launched_uniform_steps<T: Target>(mode: GraphMode, dtype: DType) {
    let setup = Setup {
        mode,
        dtype,
        checks: checks(),
        max_rows: 32,
        batches: vec![1, 3, 4],
        query_lengths: (1..=8).collect(),
        ..Setup::default()
    };
    let seen = RefCell::new(BTreeSet::new());
    let mut either = |sequences: &mut Sequences, setup: &Setup, rng: &mut Rng| {
        if rng.one_in(4) {
            turns(sequences, setup, rng)
        } else {
            uniform_turns(sequences, setup, rng)
        }
    };
    equal_launched::<T>(&setup, 2, &mut either, &|left| {
        if left.report.mode == StepMode::Full {
            seen.borrow_mut().extend(left.report.sizes.uniform());
        }
    });
    let batches = [1, 3, 4].into_iter();
    let all = batches.flat_map(|sequences| {
        (1..=8).map(move |query_length| PieceSize::Uniform { sequences, query_length })
    });
    assert_eq!(seen.into_inner(), all.collect());
}

fn equal_launched<T: Target>(
    setup: &Setup,
    other_threads: usize,
    turns: &mut dyn FnMut(&mut Sequences, &Setup, &mut Rng) -> Vec<Turn>,
    see: &dyn Fn(&Left),
) {
    let Setup { mode, dtype, .. } = *setup;
    let mut replayed = setup.build::<T>();
    let mut launched = Setup { threads: other_threads, ..setup.clone() }.build::<T>();
    launched.set_launches_only(true);
    let mut sequences = Sequences::of(&replayed);
    let poison = KvPoison::new(replayed.module().graph(), replayed.memory());
    let mut rng = Rng::new(3);
    let (mut replays, steps) = (0, soak(STEPS));
    let mut naps = Rng::new(9);
    for number in 0..steps {
        if naps.one_in(50) {
            let weights = [SuspendedWeights::Keep, SuspendedWeights::Drop][naps.below(2)];
            replayed.suspend(weights).unwrap();
            replayed.resume(Some(&WEIGHTS)).unwrap();
            (0..sequences.list.len()).for_each(|sequence| sequences.restart(sequence));
        }
        let turns = turns(&mut sequences, setup, &mut rng);
        let live: Vec<_> = sequences.list.iter().map(|s| (&s.table, s.length)).collect();
        poison.fill(replayed.device_mut(), &sequences.pool, live.into_iter()).unwrap();
        let view = sequences.fill(&turns, &mut rng);
        let before = states(&mut replayed);
        set_states(&mut launched, &before);
        let found = step(&mut replayed, &view);
        let expected = step(&mut launched, &view);
        assert_eq!(expected.report.mode, StepMode::None);
        replays += u32::from(found.report.mode != StepMode::None);
        see(&found);
        if let Some(difference) = found.difference(&expected) {
            panic!("step {number} of {mode:?}, {dtype}, {turns:?}: {difference}");
        }
        let logits = found.outputs[0].chunks_exact(4);
        let logits = logits.map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        assert!(logits.clone().all(f32::is_finite), "step {number}: poison reached a real row");
    }
    // Of the others the mode launches every mixed one.
    let least = if mode == GraphMode::FullDecodeOnly { steps / 4 } else { steps / 4 * 3 };
    assert!(replays > least, "only {replays} of {steps} steps replayed");
}

/// So many random steps of a model that checks itself.
pub(crate) fn steps_alone<T: Target>(setup: &Setup, steps: u32) {
    let mut model = setup.build::<T>();
    let mut sequences = Sequences::of(&model);
    let poison = KvPoison::new(model.module().graph(), model.memory());
    let mut rng = Rng::new(9);
    for _ in 0..soak(steps) {
        let turns = turns(&mut sequences, setup, &mut rng);
        let live: Vec<_> = sequences.list.iter().map(|s| (&s.table, s.length)).collect();
        poison.fill(model.device_mut(), &sequences.pool, live.into_iter()).unwrap();
        step(&mut model, &sequences.fill(&turns, &mut rng));
    }
}

/// The real rows of `T::PADDED_STEPS` steps do not depend on how far each is padded, but for the
/// order of sums where another size has another kernel.
pub(crate) fn equal_padded_steps<T: Target>(dtype: DType, tolerance: f64) {
    let default = Setup { mode: GraphMode::Piecewise, dtype, ..Setup::default() };
    let every_size = Vec::from_iter(1..=default.max_tokens);
    let mut exact = Setup { sizes: every_size, ..default.clone() }.build::<T>();
    let mut padded = [vec![32, default.max_tokens], vec![default.max_tokens]]
        .map(|sizes| Setup { sizes, ..default.clone() }.build::<T>());
    let mut sequences = Sequences::of(&exact);
    let mut rng = Rng::new(5);
    let (mut padded_steps, steps) = (0, soak(T::PADDED_STEPS));
    for step_number in 0..steps {
        let mut turns = turns(&mut sequences, &default, &mut rng);
        // A sum in another order may sample another id.
        turns.iter_mut().for_each(|turn| turn.feedback = false);
        let view = sequences.fill(&turns, &mut rng);
        let before = states(&mut exact);
        let expected = step(&mut exact, &view);
        assert_eq!(expected.report.mode, StepMode::Piecewise);
        for model in &mut padded {
            set_states(model, &before);
            let found = step(model, &view);
            let parts = [
                ("logits", DType::F32, &found.outputs[0], &expected.outputs[0]),
                ("states", dtype, &found.states, &expected.states),
            ];
            for (what, dtype, found, expected) in parts {
                let error = norm_error(&elements(dtype, found), &elements(dtype, expected));
                assert!(error <= tolerance, "step {step_number}, {turns:?}: {what} by {error}");
            }
            padded_steps += u32::from(found.report.sizes != expected.report.sizes);
        }
    }
    assert!(padded_steps > steps, "only {padded_steps} padded otherwise");
    println!("{} {dtype}: {padded_steps} steps equal at another padding", T::NAME);
}
