//! What a step says of its pages, with a fault planted after sequences came and went: a block table or
//! lengths of an earlier step, or two sequences on one page. Each is named before anything runs.

use crate::sequences::{Sequences, Turn, step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_runtime::batch::{ChunkRows, StepView};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{Checks, GraphMode, ModelError, PageFault, StepData, roles};
use piecewise_testing::Rng;

fn turn(sequence: usize, tokens: u64) -> Turn {
    Turn { sequence, tokens, rows: ChunkRows::Last, feedback: false }
}

/// A token for each sequence.
fn decode<'a>(sequences: &'a mut Sequences, rng: &mut Rng) -> StepView<'a> {
    let turns: Vec<_> = (0..sequences.list.len()).map(|sequence| turn(sequence, 1)).collect();
    sequences.fill(&turns, rng)
}

fn owned(step: &StepData<'_>) -> Vec<Vec<u8>> {
    step.inputs.iter().map(|bytes| bytes.to_vec()).collect()
}

/// What is said of a step with these inputs instead of its own.
fn refused(model: &mut CompiledModel, step: &StepData<'_>, inputs: &[Vec<u8>]) -> PageFault {
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    match model.submit(&StepData { inputs: &inputs, ..*step }) {
        Err(ModelError::Pages(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

fn numbers(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

pub(crate) fn stale_inputs_are_named<T: Target>() {
    let checks = Checks { poison: true, addresses: true, compare: false };
    let mut model = Setup { mode: GraphMode::Full, checks, ..Setup::default() }.build::<T>();
    let place = |model: &CompiledModel, role: &str| {
        let inputs = model.module().graph().inputs();
        inputs.iter().position(|input| input.role.as_deref() == Some(role)).unwrap()
    };
    let [table, lengths, slots, positions] =
        [roles::KV_BLOCK_TABLE, roles::KV_LENGTHS, roles::KV_SLOTS, roles::TOKEN_POSITIONS]
            .map(|role| place(&model, role));
    let mut sequences = Sequences::of(&model);
    let mut rng = Rng::new(17);
    let all = sequences.list.len();
    // Every sequence has two pages whenever it decodes, and in most rounds others than before, and no two
    // are at one position: their rows would be one.
    let mut earlier: Option<Vec<Vec<u8>>> = None;
    let mut stale = 0;
    for round in 0..8u64 {
        rng.permutation(all).into_iter().for_each(|sequence| sequences.restart(sequence));
        for sequence in rng.permutation(all) {
            let view = sequences.fill(&[turn(sequence, 17 + round + sequence as u64)], &mut rng);
            step(&mut model, &view);
        }
        let view = decode(&mut sequences, &mut rng);
        let data = view.data();
        let fresh = owned(&data);
        if let Some(earlier) = earlier.filter(|earlier| earlier[table] != fresh[table]) {
            stale += 1;
            for (at, is_named) in [
                (table, (|fault| matches!(fault, PageFault::Slot { .. })) as fn(PageFault) -> bool),
                (lengths, |fault| matches!(fault, PageFault::Length { .. })),
            ] {
                let mut planted = fresh.clone();
                planted[at].clone_from(&earlier[at]);
                let fault = refused(&mut model, &data, &planted);
                assert!(is_named(fault), "round {round}: {fault}");
            }
        }
        // The second sequence writes and reads the pages of the first.
        let mut planted = fresh.clone();
        let mut pages = numbers(&fresh[table]);
        let columns = pages.len() / all;
        let (first, others) = pages.split_at_mut(columns);
        others[..columns].copy_from_slice(first);
        let position = numbers(&fresh[positions])[1];
        let mut written = numbers(&fresh[slots]);
        let rows = PAGE_ROWS as i32;
        written[1] = first[(position / rows) as usize] * rows + position % rows;
        (planted[table], planted[slots]) = (bytes(&pages), bytes(&written));
        let fault = refused(&mut model, &data, &planted);
        let is_shared = matches!(fault, PageFault::Shared { first: 0, second: 1, .. });
        assert!(is_shared, "round {round}: {fault}");
        // What was refused left nothing behind.
        step(&mut model, &view);
        earlier = Some(fresh);
    }
    assert!(stale > 4, "{stale} rounds had other pages than the one before");
}
