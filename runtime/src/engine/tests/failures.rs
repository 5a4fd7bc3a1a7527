//! What fails, what is lost, and what is suspended: no request is lost by it.

use super::*;
use crate::batch::BoundInput;
use crate::words::{OnCaptureFailure, SuspendedWeights};

#[test]
fn graphs_that_failures_disabled_come_back_when_somebody_says_so() {
    let setup = Setup { on_capture_failure: OnCaptureFailure::Launch, ..Setup::default() };
    setup.faults.failing_captures.store(u64::MAX, Ordering::Relaxed);
    let mut engine = engine(&setup, false);
    for _ in 0..3 {
        assert_eq!(engine.model().captured_graphs(), 0);
        engine.model.capture_listed(OnCaptureFailure::Launch, &mut |_| {}, None).unwrap();
    }
    setup.faults.failing_captures.store(0, Ordering::Relaxed);
    engine.model.capture_listed(OnCaptureFailure::Launch, &mut |_| {}, None).unwrap();
    assert_eq!(engine.model().captured_graphs(), 0, "disabled");
    let all = engine.enable_graphs().unwrap();
    assert!(all > 0 && all == engine.model().captured_graphs());
    let mut events = Vec::new();
    engine.add(Request::new([1, 2, 3], 4)).unwrap();
    engine.run(&mut events).unwrap();
    assert_eq!(engine.model().statistics().steps_by_mode[StepMode::None as usize], 0);
}

/// What strikes when, and what it costs.
#[test]
fn a_failure_at_any_point_loses_no_request() {
    let requests = [&[1u32, 2, 3][..], &[4, 5], &[6]].map(|prompt| Request::new(prompt, 6));
    let mut struck = [0; 3];
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        for (kind, at) in (0..3).flat_map(|kind| (1..40).map(move |at| (kind, at))) {
            let setup = Setup { mode, ..Setup::default() };
            let mut engine = engine(&setup, true);
            let ids = requests.each_ref().map(|request| engine.add(request.clone()).unwrap());
            let faults = &setup.faults;
            let fault = [&faults.failing_replay, &faults.failing_launch, &faults.losing_wait][kind];
            fault.store(at, Ordering::Relaxed);
            let mut events = Vec::new();
            engine.run(&mut events).unwrap();
            for (id, request) in ids.into_iter().zip(&requests) {
                assert_answer(&engine, &events, id, &request.prompt, request);
            }
            assert_eq!(engine.pool.free_pages(), engine.pool.pages());
            assert_eq!(engine.entries.len() as u64, engine.roles.sampled_entries);
            if fault.load(Ordering::Relaxed) > 0 {
                continue;
            }
            struck[kind] += 1;
            let stats = engine.model().statistics();
            let found = [stats.refused_replays, engine.retried_steps(), stats.recoveries];
            let mut expected = [0; 3];
            expected[kind] = 1;
            assert_eq!(found, expected, "{mode:?} {kind} {at}");
        }
    }
    assert!(struck.iter().all(|&n| n > 8), "{struck:?}");
}

#[test]
fn failures_in_a_row_are_the_callers_and_lose_no_request_either() {
    let setup = Setup::default();
    let mut engine = engine(&setup, true);
    let request = Request::new([1, 2, 3], 4);
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    // The device can't be opened: every step says so.
    setup.faults.losing_wait.store(1, Ordering::Relaxed);
    setup.faults.failing_reopens.store(2, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(engine.step(&mut events).unwrap_err().is_lost());
    }
    // It can, and is lost again and again.
    let mut failures = 0;
    for _ in 0..5 {
        setup.faults.losing_wait.store(1, Ordering::Relaxed);
        failures += u32::from(engine.step(&mut events).is_err());
    }
    assert!(failures > 0);
    setup.faults.losing_wait.store(0, Ordering::Relaxed);
    engine.run(&mut events).unwrap();
    assert_answer(&engine, &events, id, &request.prompt, &request);
}

/// A kept conversation goes on after its pages went with the device.
#[test]
fn what_was_kept_survives_a_lost_device() {
    let setup = Setup::default();
    let mut engine = engine(&setup, true);
    let id = engine.add(Request { keep: true, ..Request::new([1, 2, 3], 4) }).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let whole = [engine.ids(id).unwrap(), &[9, 9]].concat();
    let other = engine.add(Request::new([5], 3)).unwrap();
    setup.faults.losing_wait.store(1, Ordering::Relaxed);
    engine.run(&mut events).unwrap();
    assert_eq!((engine.model().statistics().recoveries, engine.kept()), (1, &[id][..]));
    engine.extend(id, Request::new([9, 9], 5)).unwrap();
    events.clear();
    engine.run(&mut events).unwrap();
    assert_answer(&engine, &events, id, &whole, &Request::new(whole.clone(), 5));
    assert_eq!(engine.ids(other), None);
    assert_eq!(engine.pool.free_pages(), engine.pool.pages());
}

#[test]
fn suspended_requests_lose_nothing_and_go_on() {
    let setup = Setup { bounds: Bounds { tokens: 8, ..Bounds::default() }, ..Setup::default() };
    for steps in 0..6 {
        let mut engine = engine(&setup, true);
        let mut requests = Vec::new();
        for prompt in 1..5u32 {
            let request =
                Request { keep: prompt == 2, ..Request::new(vec![prompt; 5], prompt.into()) };
            requests.push((engine.add(request.clone()).unwrap(), request));
        }
        let mut events = Vec::new();
        for _ in 0..steps {
            engine.step(&mut events).unwrap();
        }
        let captured = engine.model().statistics().captures;
        engine.suspend(SuspendedWeights::Keep, &mut events).unwrap();
        assert_eq!(engine.model().suspended(), Some(SuspendedWeights::Keep));
        assert_eq!(engine.pool.free_pages(), engine.pool.pages());
        let error = engine.step(&mut events).unwrap_err();
        assert!(error.to_string().contains("suspended"), "{error}");
        engine.add(Request::new([9], 2)).unwrap();
        engine.resume(None).unwrap();
        engine.run(&mut events).unwrap();
        for (id, request) in &requests {
            assert_answer(&engine, &events, *id, &request.prompt, request);
        }
        let (id, request) = &requests[1];
        let more = Request { prompt: vec![3].into(), keep: false, ..request.clone() };
        let ids = engine.ids(*id).unwrap().to_vec();
        engine.extend(*id, more.clone()).unwrap();
        events.clear();
        engine.run(&mut events).unwrap();
        // A conversation that was kept goes on.
        assert_answer(&engine, &events, *id, &[&ids[..], &[3]].concat(), &more);
        assert_eq!(engine.model().statistics().captures, captured, "graphs stay");
        assert_eq!(engine.preemptions, 0);
    }
}

/// An input that can't be filled because of one request ends that one, in whatever company: its
/// function refuses, or writes an element past the end.
#[test]
fn what_can_t_be_told_of_one_request_ends_it_alone() {
    for (overflows, said) in
        [(false, "13 is bad luck"), (true, "writes 1 elements past the 7 of its buffer [7]")]
    {
        let setup = Setup::default();
        let model = setup.build().unwrap();
        let mut roles = Setup::roles_of(&model);
        let is_ids = |bound: &&mut BoundInput| bound.input.role() == crate::words::roles::TOKEN_IDS;
        let ids = roles.inputs.iter_mut().find(is_ids).unwrap();
        let name = ids.name.clone();
        ids.input = ids.input.clone().filled(move |batch, out| {
            let is_bad = batch.ids().contains(&13);
            if is_bad && !overflows {
                return Err("13 is bad luck".to_owned());
            }
            out.extend(batch.ids().iter().copied().chain(is_bad.then_some(0)));
            Ok(())
        });
        let options = EngineOptions::of(&model, &roles);
        let mut engine = Engine::new(model, roles, options).unwrap();
        let good = [vec![1, 2, 3], vec![4, 5]].map(|prompt| Request::new(prompt, 1));
        let first = engine.add(good[0].clone()).unwrap();
        let bad = engine.add(Request::new([7, 13], 4)).unwrap();
        let second = engine.add(good[1].clone()).unwrap();
        let mut events = Vec::new();
        let error = engine.run(&mut events).unwrap_err();
        assert_eq!(error.request(), Some(bad));
        let error = error.to_string();
        assert!(error.contains(&format!("%{name}")), "{error}");
        assert!(error.ends_with(&format!("can't be filled: {said}")), "{error}");
        engine.run(&mut events).unwrap();
        for (id, request) in [first, second].into_iter().zip(&good) {
            assert_answer(&engine, &events, id, &request.prompt, request);
        }
        assert_eq!((engine.ids(bad), engine.pool.free_pages()), (None, engine.pool.pages()));
    }
}
