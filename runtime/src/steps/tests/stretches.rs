//! Pieces and the ops between them in one graph.

use super::*;
use crate::words::{GraphKey, GraphReport};

const PROMPTS: [&[u32]; 5] = [&[4], &[5], &[6], &[7], &[8, 9, 10]];

fn in_pieces() -> Setup {
    Setup { mode: GraphMode::Piecewise, strict: true, ..Setup::default() }
}

/// The stretches of a model, each by the places of its first and last member.
fn stretches(model: &Model) -> Vec<(usize, usize)> {
    let of = |graph: GraphReport| match graph.key {
        GraphKey::Stretch { first, last, .. } => Some((first, last)),
        GraphKey::Full(_) => None,
    };
    let mut found: Vec<_> = model.graphs().into_iter().filter_map(of).collect();
    found.dedup();
    found
}

/// One graph for all divisions of five to eight tokens among the sequences: its piece runs at the size, with
/// room for the most sequences, and its op with the sequences of each step, padded by their own list.
#[test]
fn an_op_between_pieces_has_the_sizes_of_its_own_step() {
    let mut model = in_pieces().build().unwrap();
    assert_eq!(stretches(&model), [(0, 1), (2, 2)]);
    let captures = model.statistics().captures;
    let longs: [&[u32]; 2] = [&[1, 2, 3, 4, 5], &[9, 8, 7]];
    for (prompts, sequences) in [
        (&PROMPTS[..2], 2),
        (&PROMPTS[..3], 4),
        (&longs[..1], 1),
        (&longs[..], 2),
        (&PROMPTS[1..], 4),
    ] {
        model.fake_mut().replayed.clear();
        let ticket = submit_last(&mut model, prompts).unwrap();
        let last = |ids: &&[u32]| *expected(ids).last().unwrap();
        assert_eq!(sampled(&mut model, &ticket), prompts.iter().map(last).collect::<Vec<_>>());
        let report = model.last_step().unwrap();
        assert_eq!((report.mode, report.sizes.sequences), (StepMode::Piecewise, sequences));
        let tokens = report.sizes.tokens.rows();
        let replayed = &model.fake().replayed;
        let names: Vec<_> = replayed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["test.embed", "test.mix", "test.head"]);
        assert_eq!(replayed[1].1[..3], [tokens, report.sizes.rows.rows(), sequences]);
        assert!(replayed[0].1[0] == tokens && replayed[0].1[2] >= sequences, "{replayed:?}");
    }
    assert_eq!(model.statistics().captures, captures, "no step captures anything");
}

/// Pieces are counted as before, whatever they are captured with.
#[test]
fn what_can_not_be_joined_is_launched_between_graphs_and_steps_are_the_same() {
    let mut apart = in_pieces();
    apart.planted.follows_sizes = false;
    let never = Setup { split_support: CaptureSupport::Never, ..in_pieces() };
    let decodes = Setup { split_support: CaptureSupport::SingleTokenDecode, ..in_pieces() };
    for (setup, expected_graphs, launches) in [
        (in_pieces(), vec![(0, 1), (2, 2)], 0),
        (apart, vec![(0, 0), (2, 2)], 1),
        (never, vec![(0, 0), (2, 2)], 1),
        (decodes, vec![(0, 0), (2, 2)], 1),
    ] {
        let mut model = setup.build().unwrap();
        assert_eq!(stretches(&model), expected_graphs);
        let before = model.fake().counts;
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        let counts = model.fake().counts.since(before);
        assert_eq!((counts.graph_launches, counts.plain_launches), (2, launches));
        assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
        let stats = model.statistics();
        assert_eq!((stats.hits(), stats.misses()), (1, 0));
        assert_eq!(stats.piece_replays[&PieceSize::Exact(4)], 2, "the embedding and the head");
    }
}

/// What a probe does not believe is launched between graphs.
#[test]
fn an_op_that_replays_do_otherwise_is_not_joined() {
    let setup = Setup { probes: true, strict: false, ..in_pieces() };
    assert_eq!(stretches(&setup.build().unwrap()), [(0, 1), (2, 2)]);
    setup.faults.baked_table.store(true, Ordering::Relaxed);
    let mut model = setup.build().unwrap();
    assert_eq!(stretches(&model), [(0, 0), (2, 2)]);
    let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
    assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
}

/// Where uniform batches have programs of their own, they have graphs of their own in pieces; not where they
/// are replayed whole.
#[test]
fn uniform_batches_in_pieces_run_by_their_own_programs() {
    let uniform = |model: &Model| {
        let is_uniform = |graph: &GraphReport| graph.key.size().query_length().is_some();
        model.graphs().into_iter().filter(is_uniform).map(|graph| graph.key).collect::<Vec<_>>()
    };
    let mut model = in_pieces().build().unwrap();
    let of_decodes = uniform(&model);
    assert!(
        of_decodes.len() == 3
            && of_decodes.iter().all(|key| matches!(key, GraphKey::Stretch { .. }))
    );
    let ticket = submit_last(&mut model, &PROMPTS[..2]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), [expected(&[4])[0], expected(&[5])[0]]);
    let report = model.last_step().unwrap();
    assert_eq!((report.mode, report.sizes.query_length), (StepMode::Piecewise, Some(1)));
    let stats = model.statistics();
    assert_eq!(stats.piece_replays[&PieceSize::Exact(2)], 2, "pieces have no such programs");

    let model = Setup::default().build().unwrap();
    assert!(uniform(&model).iter().all(|key| matches!(key, GraphKey::Full(_))), "whole");
}

/// A value that dies inside of a graph is gone at its end; one that is left there is compared.
#[test]
fn check_compare_holds_what_a_stretch_leaves() {
    let mut setup = in_pieces();
    setup.checks.compare = true;
    let mut model = setup.build().unwrap();
    for prompts in [&PROMPTS[..], &PROMPTS[..3]] {
        submit_last(&mut model, prompts).unwrap();
    }
    setup.faults.baked_table.store(true, Ordering::Relaxed);
    let error = submit_last(&mut setup.build().unwrap(), &PROMPTS).unwrap_err();
    let ModelError::ReplayDiffers { value, .. } = &error else { panic!("{error}") };
    assert!(value.contains("written by test.mix"), "{error}");
}
