//! When graphs are captured, and what becomes of them when something fails.

use super::*;
use crate::steps::late_sizes::LateSizes;
use crate::store::LateCompiler;
use crate::testing::fake_module;
use crate::words::{
    CaptureWhen, GraphKey, GraphReport, GraphState, Ledger, ModelError, OnCaptureFailure, Progress,
};
use piecewise_backend::compiler::NoStore;
use piecewise_backend::device::DeviceError;
use piecewise_backend::tuning::TuneMode;
use std::sync::Arc;

#[test]
fn graphs_are_captured_largest_first() {
    let mut model = Setup::default().build().unwrap();
    let captured = model.recapture(GraphMode::FullAndPiecewise, &mut |_| {}).unwrap();
    for kind in [GraphKind::Full, GraphKind::Tokens, GraphKind::Rows] {
        let of_kind = captured.iter().filter(|graph| graph.kind == kind);
        let sizes: Vec<u64> = of_kind.map(|graph| graph.size.rows()).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{kind:?}: {sizes:?}");
        assert!(sizes.len() > 1 || kind == GraphKind::Rows, "{kind:?}: {sizes:?}");
    }
}

/// Each capture is told of when it was made: at the build, and when a mode is taken by a live model.
#[test]
fn every_capture_is_told() {
    let mut told = Vec::new();
    let mut model = Setup::default().build_telling(&NoStore, &mut |what| told.push(what)).unwrap();
    let captures = |told: &[Progress]| -> Vec<(usize, usize)> {
        let of = |what: &Progress| match *what {
            Progress::Capturing { done, total } => Some((done, total)),
            _ => None,
        };
        told.iter().filter_map(of).collect()
    };
    let all = model.captured_graphs();
    let each: Vec<_> = (1..=all).map(|done| (done, all)).collect();
    assert!(all > 1);
    assert_eq!(captures(&told), each);
    told.clear();
    model.recapture(GraphMode::FullAndPiecewise, &mut |what| told.push(what)).unwrap();
    assert_eq!(captures(&told), each);
}

/// The driver loads a kernel at its first launch, which no capture may hold.
#[test]
fn what_is_captured_was_launched_before() {
    for mode in [GraphMode::Piecewise, GraphMode::Full, GraphMode::FullAndPiecewise] {
        let model = Setup { mode, ..Setup::default() }.build().unwrap();
        assert!(model.captured_graphs() > 0);
        assert_eq!(model.fake().captured_cold, Vec::<String>::new(), "{mode:?}");
    }
}

#[test]
fn a_failed_capture_is_an_error_or_a_counted_fallback() {
    let setup = Setup::default();
    setup.faults.failing_captures.store(1, Ordering::Relaxed);
    assert!(matches!(setup.build(), Err(ModelError::Device(_))));

    let setup = Setup { on_capture_failure: OnCaptureFailure::Launch, ..Setup::default() };
    setup.faults.failing_captures.store(u64::MAX, Ordering::Relaxed);
    let mut model = setup.build().unwrap();
    assert_eq!((model.captured_graphs(), model.statistics().captures), (0, 0));
    let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
    assert_eq!(model.last_step().unwrap().fallback, Some(FallbackReason::NotCaptured));
    for _ in 0..2 {
        model.capture_listed(OnCaptureFailure::Launch, &mut |_| {}, None).unwrap();
    }
    setup.faults.failing_captures.store(0, Ordering::Relaxed);
    model.capture_listed(OnCaptureFailure::Launch, &mut |_| {}, None).unwrap();
    assert_eq!(model.captured_graphs(), 0, "disabled after three failures in a row");
    let all = model.enable_graphs().unwrap();
    assert!(all > 0);
    submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
    model.invalidate_graphs();
    assert_eq!(model.captured_graphs(), 0);
    model.capture_listed(OnCaptureFailure::Error, &mut |_| {}, None).unwrap();
    assert_eq!(model.captured_graphs(), all);
}

/// Memory that moves is followed as often as the limit says; then its graphs are gone until somebody
/// enables them.
#[test]
fn memory_that_moves_beyond_the_limit_leaves_steps_launched() {
    let moves = |model: &mut Model| {
        let before = model.memory().states;
        let device = model.device_mut();
        let after = device.reserve("elsewhere", before.bytes).unwrap();
        device.back(after).unwrap();
        model.memory_mut().states = after;
        let ids = [4, 5, 6];
        let ticket = submit(model, &ids).unwrap();
        assert_eq!(sampled(model, &ticket), expected(&ids));
        model.last_step().unwrap()
    };
    for capture in [CaptureWhen::Startup, CaptureWhen::Lazy, CaptureWhen::Background] {
        let setup = Setup { recapture_limit: 2, capture, ..Setup::default() };
        let mut model = setup.build().unwrap();
        while model.capture_next().unwrap() {}
        let mut captures = Vec::new();
        for number in 1..=4 {
            let report = moves(&mut model);
            while model.capture_next().unwrap() {}
            captures.push(model.statistics().captures);
            if number > 2 {
                assert_eq!(report.fallback, Some(FallbackReason::NotCaptured), "{capture:?}");
                let disabled = |graph: &GraphReport| graph.state == GraphState::Disabled;
                assert!(model.graphs().iter().all(disabled), "{capture:?}");
            }
        }
        assert!(captures[0] < captures[1] && captures[1] == captures[3], "{captures:?}");
        let stats = model.statistics();
        assert_eq!((stats.address_changes, stats.recapture_limit_hits), (4, 2));
        model.enable_graphs().unwrap();
        while model.capture_next().unwrap() {}
        assert!(model.captured_graphs() > 0);
        moves(&mut model);
        while model.capture_next().unwrap() {}
        assert!(model.captured_graphs() > 0, "the count begins again");
        assert_eq!(model.statistics().recapture_limit_hits, 2);
    }
    let mut model = Setup { recapture_limit: 0, ..Setup::default() }.build().unwrap();
    (0..5).for_each(|_| assert_ne!(moves(&mut model).mode, StepMode::None, "no limit"));
}

#[test]
fn lazy_capture_captures_what_the_step_needs_once() {
    let mut model = Setup { capture: CaptureWhen::Lazy, ..Setup::default() }.build().unwrap();
    assert_eq!(model.statistics().captures, 0);
    for _ in 0..2 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        assert_eq!(model.last_step().unwrap().mode, StepMode::Piecewise);
        assert_eq!(model.statistics().captures, 2);
    }
    submit(&mut model, &[4]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
    assert_eq!(model.statistics().captures, 3);
}

/// A step of three tokens at each graph that is refused in its turn: the tokens are right, the graph
/// is launched from there on and captured again by the next step that wants it, the others stay.
#[test]
fn a_refused_replay_is_launched_and_captured_again() {
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let setup = Setup { mode, ..Setup::default() };
        let graphs = if mode == GraphMode::Full { 1 } else { 2 };
        for refused in 1..=graphs {
            let mut model = setup.build().unwrap();
            let all = model.captured_graphs();
            setup.faults.failing_replay.store(refused, Ordering::Relaxed);
            let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
            let report = model.last_step().unwrap();
            assert_eq!(report.fallback, Some(FallbackReason::ReplayRefused));
            assert_eq!(report.mode, StepMode::None);
            assert_eq!(model.captured_graphs(), all - 1, "the others stay");
            let stale = model.graphs().into_iter().find(|g| g.state == GraphState::Stale).unwrap();
            assert_eq!((stale.counts.failures, stale.counts.captures), (1, 1));
            let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
            assert_eq!(model.last_step().unwrap().mode, mode.mixed());
            assert_eq!(model.captured_graphs(), all);
            let stats = model.statistics();
            assert_eq!((stats.refused_replays, stats.recaptures), (1, 1));
            assert_eq!(stats.misses["replay_refused"], 1);
            let again = model.graphs().into_iter().find(|g| g.key == stale.key).unwrap();
            assert_eq!((again.state, again.counts.recaptures), (GraphState::Ready, 1));
            assert_eq!((again.counts.launches, again.counts.misses), (1, 1));
        }
        setup.faults.failing_replay.store(1, Ordering::Relaxed);
        let error = submit(&mut Setup { strict: true, ..setup }.build().unwrap(), &[4]);
        assert!(matches!(error, Err(ModelError::Device(DeviceError::Refused { .. }))), "{error:?}");
    }
}

#[test]
fn a_graph_that_is_refused_three_times_in_a_row_is_disabled() {
    let setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    let mut model = setup.build().unwrap();
    for refusals in 1..=5 {
        setup.faults.failing_replay.store(1, Ordering::Relaxed);
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        let fallback = model.last_step().unwrap().fallback.unwrap();
        let reason = match refusals {
            ..=3 => FallbackReason::ReplayRefused,
            _ => FallbackReason::NotCaptured,
        };
        assert_eq!(fallback, reason, "{refusals}");
    }
    assert_eq!(model.statistics().refused_replays, 3);
    setup.faults.failing_replay.store(0, Ordering::Relaxed);
    model.enable_graphs().unwrap();
    submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
}

/// Dropped graphs come back as steps want them, each once.
#[test]
fn invalidated_graphs_are_captured_again_by_the_steps_that_want_them() {
    let mut model = Setup { mode: GraphMode::Full, ..Setup::default() }.build().unwrap();
    let all = model.captured_graphs();
    model.invalidate_graphs();
    for _ in 0..2 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        assert_eq!(model.last_step().unwrap().mode, StepMode::Full);
        assert_eq!((model.captured_graphs(), model.statistics().recaptures), (1, 1));
    }
    model.capture_listed(OnCaptureFailure::Error, &mut |_| {}, None).unwrap();
    assert_eq!(
        (model.captured_graphs() as u64, all as u64),
        (all as u64, model.statistics().recaptures)
    );
}

#[test]
fn background_capture_takes_what_steps_want_first_and_then_all() {
    let lazy = Setup { capture: CaptureWhen::Background, ..Setup::default() };
    let mut model = lazy.build().unwrap();
    assert_eq!(model.statistics().captures, 0);
    // A graph that is wanted comes before larger ones that are not.
    model.graphs.slot_mut(GraphKey::Full(model.dispatcher.full_decode(1, 1))).unwrap().miss();
    assert!(model.capture_next().unwrap());
    let ready: Vec<_> =
        model.graphs().into_iter().filter(|g| g.state == GraphState::Ready).collect();
    assert_eq!(ready.len(), 1);
    assert_eq!(ready[0].key, GraphKey::Full(model.dispatcher.full_decode(1, 1)));
    let all = Setup::default().build().unwrap().captured_graphs();
    let mut launched = 0;
    for _ in 0..2000 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        launched += u32::from(model.last_step().unwrap().mode == StepMode::None);
    }
    assert!((1..2000).contains(&launched), "{launched}");
    while model.capture_next().unwrap() {}
    assert_eq!(model.captured_graphs(), all);
    // A failure is counted, and never one of the step.
    model.invalidate_graphs();
    lazy.faults.failing_captures.store(u64::MAX, Ordering::Relaxed);
    for _ in 0..600 {
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
    }
    assert!(model.statistics().capture_failures > 0);
}

#[test]
fn what_was_lost_after_all_was_captured_is_captured_between_steps_again() {
    let setup = Setup { capture: CaptureWhen::Background, ..Setup::default() };
    let mut model = setup.build().unwrap();
    let all = Setup::default().build().unwrap().captured_graphs();
    let run = |model: &mut Model| {
        for _ in 0..100_000 {
            let ticket = submit(model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(model, &ticket), expected(&[4, 5, 6]));
            if model.captured_graphs() == all && model.background.is_done {
                return;
            }
        }
        panic!("{} of {all} graphs after 100,000 steps", model.captured_graphs());
    };
    run(&mut model);
    setup.faults.failing_replay.store(1, Ordering::Relaxed);
    let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
    assert_eq!(model.statistics().refused_replays, 1);
    run(&mut model);
    setup.faults.losing_wait.store(1, Ordering::Relaxed);
    let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
    assert!(model.read(&ticket).unwrap_err().is_lost());
    model.recover().unwrap();
    assert_eq!(model.captured_graphs(), 0);
    run(&mut model);
}

#[test]
fn a_lost_device_is_opened_anew_and_everything_on_it_made_again() {
    for capture in [CaptureWhen::Startup, CaptureWhen::Lazy, CaptureWhen::Background] {
        let setup = Setup { capture, ..Setup::default() };
        let mut model = setup.build().unwrap();
        let before = model.captured_graphs();
        let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
        setup.faults.losing_wait.store(1, Ordering::Relaxed);
        assert!(model.read(&ticket).unwrap_err().is_lost());
        assert!(submit(&mut model, &[4]).unwrap_err().is_lost());
        setup.faults.failing_reopens.store(1, Ordering::Relaxed);
        assert!(model.recover().unwrap_err().is_lost());
        assert!(model.is_lost());
        assert!(matches!(submit(&mut model, &[4]), Err(ModelError::Lost)));
        model.recover().unwrap();
        assert!(!model.is_lost());
        assert!(matches!(model.read(&ticket), Err(ModelError::Expired { .. })));
        assert_eq!(model.captured_graphs(), before);
        for _ in 0..3 {
            let ticket = submit(&mut model, &[4, 5, 6]).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&[4, 5, 6]));
        }
        assert_eq!(model.statistics().recoveries, 1);
    }
}

/// An op is two launches of the fake compiler, and one of the fake device.
#[test]
fn the_ledger_knows_the_graphs_before_they_are_captured() {
    for mode in GraphMode::ALL {
        let model = Setup { mode, ..Setup::default() }.build().unwrap();
        let launches: u64 = model.ready_graphs().map(|g| g.shape().launches).sum();
        let expected = ((model.captured_graphs() as u64) << 20) + 2 * launches;
        assert_eq!(model.memory().ledger.graphs, expected, "{}", mode.name());
        assert_eq!(model.memory().ledger.pinned, model.fake().pinned_bytes(), "{}", mode.name());
    }
}

/// What a mode takes is known before it is changed to: beyond the limit nothing changes, and what is said to
/// fit does.
#[test]
fn the_ledger_follows_the_mode_and_holds_it_to_the_limit() {
    use GraphMode::{Full, FullAndPiecewise, None};
    let of_mode = |mode| Setup { mode, ..Setup::default() }.build().unwrap().memory().ledger;
    let mut model = Setup { mode: Full, ..Setup::default() }.build().unwrap();
    for mode in GraphMode::ALL {
        model.set_graph_mode(mode, &mut |_| {}).unwrap();
        assert_eq!(model.memory().ledger.graphs, of_mode(mode).graphs, "{}", mode.name());
        let launches: u64 = model.ready_graphs().map(|g| g.shape().launches).sum();
        let expected = ((model.captured_graphs() as u64) << 20) + 2 * launches;
        assert_eq!(model.memory().ledger.graphs, expected, "{}", mode.name());
    }
    model.set_graph_mode(None, &mut |_| {}).unwrap();
    let bare = model.memory().ledger;
    let needed = bare.total() + of_mode(FullAndPiecewise).graphs;
    model.limit_memory("memory_budget", needed - 1);
    let error = model.set_graph_mode(FullAndPiecewise, &mut |_| {}).unwrap_err();
    let ModelError::BeyondLimit { needed: said, limit, .. } = &error else { panic!("{error}") };
    assert_eq!((*said, *limit), (needed, needed - 1));
    let text = error.to_string();
    assert!(
        text.contains("memory_budget") && text.contains("full_decode_only would fit"),
        "{text}"
    );
    assert_eq!((model.dispatcher().mode, model.memory().ledger), (None, bare), "nothing changed");
    model.set_graph_mode(GraphMode::FullDecodeOnly, &mut |_| {}).unwrap();
    assert!(model.memory().ledger.total() < needed);
    model.limit_memory("memory_budget", needed);
    model.set_graph_mode(FullAndPiecewise, &mut |_| {}).unwrap();
    assert_eq!(model.memory().ledger.total(), needed);
    // A device that is opened anew holds as much.
    let before = model.memory().ledger;
    model.recover().unwrap();
    assert_eq!(model.memory().ledger, before);
}

/// A size that comes late is held to the limit as a mode is: beyond it nothing changes, and steps of so many
/// tokens go on padded.
#[test]
fn a_late_size_that_passes_the_limit_is_refused_and_steps_go_on_padded() {
    let setup = Setup { token_sizes: vec![1, 8], ..Setup::default() };
    let bare = setup.build().unwrap().memory().ledger;
    let (size, ledger) = with_late_size(&mut setup.build().unwrap(), &setup, u64::MAX);
    assert_eq!(size, 3);
    let needed = ledger.total();
    assert!(needed > bare.total());
    let mut model = setup.build().unwrap();
    assert_eq!(with_late_size(&mut model, &setup, needed - 1), (8, bare), "nothing changed");
    assert_eq!(with_late_size(&mut model, &setup, needed), (3, ledger));
}

/// What kept a size from being made may be over: it is tried again with the graphs that failed, and not
/// at every step.
#[test]
fn a_late_size_that_failed_is_tried_again_with_graphs_that_failed() {
    let setup = Setup { token_sizes: vec![1, 8], ..Setup::default() };
    let mut model = setup.build().unwrap();
    let bare = model.memory().ledger;
    assert_eq!(with_late_size(&mut model, &setup, bare.total()), (8, bare));
    let failed = |model: &Model| Vec::from_iter(model.late.as_ref().unwrap().failed.clone());
    assert_eq!(failed(&model), [3]);
    model.limit_memory("memory_budget", u64::MAX);
    assert_eq!((until_no_size_is_late(&mut model), failed(&model)), (8, vec![3]));
    model.enable_graphs().unwrap();
    assert_eq!((until_no_size_is_late(&mut model), failed(&model)), (3, vec![]));
}

/// What is measured makes requests wait, so that a size that comes late takes what is expected or known.
#[test]
fn a_late_size_is_not_measured() {
    let mut setup = Setup { token_sizes: vec![1, 8], tune: TuneMode::Measure, ..Setup::default() };
    setup.planted.alternatives = vec![[3, 2]];
    let mut model = setup.build().unwrap();
    let before = model.statistics().tuning;
    assert!(before.measured > 0 && before.unmeasured == 0);
    assert_eq!(with_late_size(&mut model, &setup, u64::MAX).0, 3);
    let after = model.statistics().tuning;
    assert_eq!((after.measured, after.time), (before.measured, before.time));
    assert!(after.unmeasured > 0, "the statistics say so");
}

/// The size that steps of three tokens have once a size of their own has been lowered, and the ledger then.
fn with_late_size(model: &mut Model, setup: &Setup, limit: u64) -> (u64, Ledger) {
    model.limit_memory("memory_budget", limit);
    let (module, store) = (Arc::new(fake_module(setup.bounds)), Arc::new(NoStore));
    let late = LateCompiler { module, compiler: Box::new(setup.compiler()), store };
    model.specialize_late([3], late, setup.tune);
    (until_no_size_is_late(model), model.memory().ledger)
}

/// Steps of three tokens until no size is on its way; the size that they have then.
fn until_no_size_is_late(model: &mut Model) -> u64 {
    let step = |model: &mut Model| {
        let ticket = submit(model, &[4, 5, 6]).unwrap();
        assert_eq!(sampled(model, &ticket), expected(&[4, 5, 6]));
    };
    let waits = |late: &LateSizes| !late.wanted.is_empty() || late.running.is_some();
    while model.late.as_ref().is_some_and(waits) {
        step(model);
    }
    step(model);
    model.last_step().unwrap().sizes.tokens.rows()
}

/// Graphs of a size that waits are captured by the first step that wants them, the others at start, and
/// from then on they are there like the others.
#[test]
fn a_lazy_size_is_captured_by_the_first_step_that_wants_it() {
    for mode in [GraphMode::Full, GraphMode::FullAndPiecewise] {
        let mut setup = Setup { mode, ..Setup::default() };
        let all = setup.build().unwrap().captured_graphs();
        setup.rules.lazy = vec![4];
        let mut model = Setup { strict: true, ..setup }.build().unwrap();
        let at_start = model.captured_graphs();
        assert!(at_start < all, "{at_start} of {all}");
        for (ids, captures) in [(&[4, 5][..], false), (&[4, 5, 6], true), (&[4, 5, 6], false)] {
            let before = model.statistics().captures;
            let ticket = submit(&mut model, ids).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(ids));
            assert_ne!(model.last_step().unwrap().mode, StepMode::None);
            assert_eq!(model.statistics().captures > before, captures, "{mode:?} {ids:?}");
        }
        assert_eq!(model.statistics().recaptures, 0);
    }
}

/// A specialized size serves steps of exactly so many tokens, and the first captures it.
#[test]
fn a_specialized_size_is_captured_by_the_first_step_of_its_tokens() {
    let mut setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    setup.rules.specialized = vec![3];
    let mut model = setup.build().unwrap();
    let at_start = model.captured_graphs();
    for (ids, size) in [(&[4, 5][..], 2), (&[4, 5, 6], 3), (&[4, 5, 6], 3), (&[1, 2, 3, 4], 4)] {
        let ticket = submit(&mut model, ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(ids));
        let report = model.last_step().unwrap();
        assert_eq!((report.mode, report.sizes.tokens.rows()), (StepMode::Full, size), "{ids:?}");
    }
    assert_eq!(model.captured_graphs(), at_start + 1);
    setup.rules.launched = vec![3];
    let mut model = Setup { strict: true, ..setup }.build().unwrap();
    submit(&mut model, &[4, 5, 6]).unwrap();
    assert_eq!(model.last_step().unwrap().fallback, Some(FallbackReason::LaunchedSize));
}
