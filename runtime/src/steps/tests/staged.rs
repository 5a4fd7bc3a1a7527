//! What a step brings, with and without a mirror on the host, and how long its block is in use.

use super::*;
use crate::words::{CaptureWhen, Checks, ModelError};

fn setup(mode: GraphMode) -> Setup {
    let bounds = Bounds { table_pages: 1 << 15, sequences: 8, tokens: 64, ..Bounds::default() };
    let checks = Checks::default();
    Setup { bounds, checks, mode, batch_sizes: vec![4, 8], ..Setup::default() }
}

fn submit_by(
    model: &mut Model,
    prompts: &[&[u32]],
    from_source: bool,
) -> Result<Ticket, ModelError> {
    let mut batch = batch_of(model, prompts);
    match from_source {
        true => model.submit(&batch.step().unwrap().data()),
        false => model.submit(&batch.view().unwrap().data()),
    }
}

/// Prompts of which some are short and whose tables of 32,768 columns lie apart, in every mode: what is
/// copied, and what comes of it, is the same whether or not it goes through a mirror, and whether it is
/// filled before or where it is to lie.
#[test]
fn a_step_past_the_mirror_is_the_one_through_it() {
    let prompts: [&[&[u32]]; 4] =
        [&[&[5, 6, 7], &[1]], &[&[4]], &[&[3], &[2], &[9], &[7], &[8]], &[&[1, 2, 3, 4, 5]]];
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let run = |reads_inputs, from_source| {
            let mut setup = setup(mode);
            setup.planted.reads_inputs = reads_inputs;
            let mut model = setup.build().unwrap();
            let inputs: Vec<_> = model.module().graph().inputs().iter().map(|i| i.value).collect();
            let mut found = Vec::new();
            for prompts in prompts {
                model.fake_mut().copied_in.clear();
                let ticket = submit_by(&mut model, prompts, from_source).unwrap();
                let ids = sampled(&mut model, &ticket);
                let expected = prompts.iter().map(|ids| next_id(ids, Sampling::default()));
                assert_eq!(
                    ids,
                    expected.collect::<Vec<_>>(),
                    "{mode:?} {reads_inputs} {prompts:?}"
                );
                let copied = model.fake().copied_in.clone();
                let bytes: Vec<_> =
                    inputs.iter().map(|&value| value_bytes(&mut model, value)).collect();
                // Rows of more than one call of the head go through the mirror.
                let is_direct = prompts.len() <= 4 && !reads_inputs;
                assert_eq!(model.staging.staged(&[]).is_empty(), is_direct);
                found.push((copied, bytes));
            }
            found
        };
        let expected = run(true, false);
        for (reads_inputs, from_source) in [(true, true), (false, false), (false, true)] {
            let found = run(reads_inputs, from_source);
            assert!(found == expected, "{mode:?}, {reads_inputs}, {from_source}");
        }
    }
}

/// The step that captures it is the first that it reads inputs of.
#[test]
fn a_graph_captured_in_a_step_that_reads_inputs_on_the_host_has_them() {
    let mut setup = Setup { capture: CaptureWhen::Lazy, ..setup(GraphMode::Full) };
    setup.planted.captured_read_inputs = true;
    let mut model = setup.build().unwrap();
    let ticket = submit_by(&mut model, &[&[4]], true).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
    assert!(!model.staging.staged(&[]).is_empty());
    assert_eq!(sampled(&mut model, &ticket), expected(&[4]));
}

/// Nobody reads: a step waits for the end of the one that had its blocks before.
#[test]
fn steps_that_nobody_reads_keep_their_blocks_to_their_end() {
    let mut model = setup(GraphMode::Full).build().unwrap();
    let mut tickets = Vec::new();
    for id in 1..9 {
        tickets.push((id, submit(&mut model, &[id]).unwrap()));
    }
    for (id, ticket) in &tickets[6..] {
        assert_eq!(sampled(&mut model, ticket), expected(&[*id]));
    }
    let (_, expired) = &tickets[5];
    assert!(matches!(model.read(expired), Err(ModelError::Expired { .. })));
}

/// The device holds copies against what their block has when they run.
#[test]
fn a_step_that_fails_after_its_copies_keeps_its_block_until_they_are_done() {
    for reads_inputs in [false, true] {
        let mut setup = setup(GraphMode::None);
        setup.planted.reads_inputs = reads_inputs;
        let mut model = setup.build().unwrap();
        for id in 1..4 {
            setup.faults.failing_launch.store(1, Ordering::Relaxed);
            submit(&mut model, &[id]).unwrap_err();
            let ticket = submit(&mut model, &[id + 10]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[id + 10]));
        }
    }
}
