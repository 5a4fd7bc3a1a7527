use super::*;
use crate::StepTraceWriter;
use crate::batch::Sampling;
use crate::metrics::Snapshot;
use crate::mode::{GraphMode, StepMode};
use crate::model::{OnCaptureFailure, SuspendedWeights};
use crate::perfetto::slices;
use crate::stats::{Histogram, Statistics};
use crate::testing::{Bounds, Setup, VOCAB, next_id};
use piecewise_ir::testing::soak;
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

mod order;
mod prefix;
mod rows;

fn engine(setup: &Setup, run_ahead: bool) -> BatchingEngine<crate::testing::FakeDevice> {
    let model = setup.build().unwrap();
    let roles = Setup::roles_of(&model);
    let options = EngineOptions { run_ahead, ..EngineOptions::of(&model, &roles) };
    BatchingEngine::new(model, roles, options).unwrap()
}

/// What a request gives, computed one id at a time from the whole text before it.
fn simulate(prompt: &[u32], request: &Request, max_seq_len: u64) -> (Vec<u32>, FinishReason) {
    let mut ids = prompt.to_vec();
    let mut generated = Vec::new();
    loop {
        let id = next_id(&ids, request.sampling);
        ids.push(id);
        generated.push(id);
        if !request.ignore_eos && request.stop_ids.contains(&id) {
            return (generated, FinishReason::Stop);
        }
        if generated.len() as u64 == request.max_tokens || ids.len() as u64 == max_seq_len {
            return (generated, FinishReason::Length);
        }
    }
}

fn collect(events: &[RequestEvent], of: RequestId) -> (Vec<u32>, Option<FinishReason>) {
    let mut ids = Vec::new();
    let mut end = None;
    for event in events {
        match *event {
            RequestEvent::Token { request, id, .. } if request == of => {
                assert_eq!(end, None, "a token after the end");
                ids.push(id);
            }
            RequestEvent::Finished { request, reason, .. } if request == of => {
                assert_eq!(end.replace(reason), None, "finished twice");
            }
            _ => {}
        }
    }
    (ids, end)
}

fn request() -> impl Strategy<Value = Request> {
    let sampling = prop_oneof![
        Just(Sampling::default()),
        any::<u64>().prop_map(|seed| Sampling {
            temperature: 0.7,
            top_k: 5,
            top_p: 0.9,
            seed,
            ..Sampling::default()
        }),
    ];
    (
        prop::collection::vec(0u32..VOCAB as u32, 1..40),
        1u64..30,
        prop::collection::vec(0u32..VOCAB as u32, 0..6),
        any::<bool>(),
        sampling,
        any::<bool>(),
    )
        .prop_map(|(prompt, max_tokens, stop_ids, ignore_eos, sampling, keep)| Request {
            prompt,
            max_tokens,
            stop_ids,
            ignore_eos,
            sampling,
            keep,
            ..Request::new([], 1)
        })
}

fn setup() -> impl Strategy<Value = Setup> {
    (
        prop::sample::select(GraphMode::ALL.to_vec()),
        // From one sequence of full length to room for all.
        prop::sample::select(vec![5u64, 6, 8, 12, 40]),
        prop::sample::select(vec![4u64, 7, 16]),
        1u64..6,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(mode, pages, tokens, seqs, compare)| {
            let mut setup = Setup { mode, ..Setup::default() };
            setup.bounds = Bounds {
                tokens,
                rows: 4,
                sequences: seqs,
                kv_rows: pages * 16,
                entries: 6,
                table_pages: 5,
                embeddings: 0,
            };
            setup.token_sizes.retain(|&size| size <= tokens);
            setup.checks.compare = compare;
            setup
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(400)))]
    #[test]
    fn every_request_gets_the_ids_that_a_simulation_gives(
        setup in setup(),
        run_ahead in any::<bool>(),
        requests in prop::collection::vec((request(), 0usize..6, request()), 1..8),
    ) {
        let mut engine = engine(&setup, run_ahead);
        let bound = engine.options().max_seq_len;
        let mut events = Vec::new();
        let mut turns = Vec::new();
        for (request, steps, next) in &requests {
            let id = engine.add(request.clone()).unwrap();
            turns.push((id, request, next));
            for _ in 0..*steps {
                engine.step(&mut events).unwrap();
            }
        }
        engine.run(&mut events).unwrap();
        let mut second = Vec::new();
        for &(id, request, next) in &turns {
            let (ids, reason) = simulate(&request.prompt, request, bound);
            prop_assert_eq!(collect(&events, id), (ids.clone(), Some(reason)));
            let all = [request.prompt.clone(), ids].concat();
            prop_assert_eq!(engine.ids(id).map(<[u32]>::to_vec), request.keep.then(|| all.clone()));
            let room = all.len() + next.prompt.len() < bound as usize;
            match engine.extend(id, next.clone()) {
                Ok(()) => {
                    prop_assert!(request.keep && room);
                    second.push((id, [all, next.prompt.clone()].concat(), next));
                }
                Err(EngineError::NotKept { .. }) => prop_assert!(!request.keep),
                Err(EngineError::TooLong { .. }) => {
                    prop_assert!(request.keep && !room);
                    engine.remove(id).unwrap();
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        events.clear();
        engine.run(&mut events).unwrap();
        for (id, prompt, next) in second {
            let (ids, reason) = simulate(&prompt, next, bound);
            prop_assert_eq!(collect(&events, id), (ids, Some(reason)));
            if next.keep {
                engine.remove(id).unwrap();
            }
        }
        prop_assert_eq!(engine.pool().free_pages(), engine.pool().pages());
        prop_assert!(engine.sequences.is_empty() && engine.kept.is_empty());
        prop_assert_eq!(engine.entries.len(), 6);
    }

    #[test]
    fn no_request_notices_that_the_mode_changes(
        run_ahead in any::<bool>(),
        requests in prop::collection::vec(request(), 1..5),
        modes in prop::collection::vec(prop::sample::select(GraphMode::ALL.to_vec()), 1..8),
    ) {
        let bounds = Bounds { sequences: 4, kv_rows: 40 * 16, table_pages: 5, ..Bounds::default() };
        let setup = Setup { bounds, mode: GraphMode::Full, ..Setup::default() };
        let mut engine = engine(&setup, run_ahead);
        let bound = engine.options().max_seq_len;
        let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
        let mut events = Vec::new();
        for &mode in modes.iter().cycle() {
            engine.set_graph_mode(mode).unwrap();
            prop_assert_eq!(engine.dispatcher().mode, mode);
            if !engine.step(&mut events).unwrap() {
                break;
            }
        }
        for (id, request) in ids.into_iter().zip(&requests) {
            let (ids, reason) = simulate(&request.prompt, request, bound);
            prop_assert_eq!(collect(&events, id), (ids, Some(reason)));
        }
    }

    #[test]
    fn logits_are_those_of_every_position(
        setup in setup(),
        ids in prop::collection::vec(0u32..VOCAB as u32, 1..70),
        max_logit_rows in 5u64..20,
    ) {
        let mut engine = engine(&Setup { max_logit_rows, ..setup }, true);
        let mut rows = Vec::new();
        engine.logits(&Request::new(ids.clone(), 1), &mut |first, bytes| {
            assert_eq!(first as usize, rows.len());
            rows.extend(bytes.chunks_exact(4 * VOCAB as usize).map(|row| {
                row.chunks_exact(4).position(|c| c == 1.0f32.to_le_bytes()).unwrap() as u32
            }));
        }).unwrap();
        let expected: Vec<_> =
            (1..=ids.len()).map(|n| next_id(&ids[..n], Sampling::default())).collect();
        prop_assert_eq!(rows, expected);
        prop_assert_eq!(engine.pool().free_pages(), engine.pool().pages());
    }
}

#[test]
fn graphs_that_failures_disabled_come_back_when_somebody_says_so() {
    let setup = Setup { on_capture_failure: OnCaptureFailure::Launch, ..Setup::default() };
    setup.faults.failing_captures.store(u64::MAX, Ordering::Relaxed);
    let mut engine = engine(&setup, false);
    for _ in 0..3 {
        assert_eq!(engine.captured_graphs(), 0);
        engine.model.capture_all(OnCaptureFailure::Launch, &mut |_| {}).unwrap();
    }
    setup.faults.failing_captures.store(0, Ordering::Relaxed);
    engine.model.capture_all(OnCaptureFailure::Launch, &mut |_| {}).unwrap();
    assert_eq!(engine.captured_graphs(), 0, "disabled");
    let all = engine.enable_graphs().unwrap();
    assert!(all > 0 && all == engine.captured_graphs());
    let mut events = Vec::new();
    engine.add(Request::new([1, 2, 3], 4)).unwrap();
    engine.run(&mut events).unwrap();
    assert_eq!(engine.statistics().steps_by_mode[StepMode::None as usize], 0);
}

#[test]
fn decode_runs_one_step_ahead_of_what_was_read() {
    let mut engine = engine(&Setup::default(), true);
    engine.add(Request::new([1, 2, 3], 5)).unwrap();
    let mut events = Vec::new();
    let mut seen = Vec::new();
    while engine.step(&mut events).unwrap() {
        seen.push((events.len(), engine.in_flight.len()));
    }
    assert_eq!(seen, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(engine.model().statistics().steps, 5);
}

#[test]
fn what_is_published_is_what_ran() {
    let mut engine = engine(&Setup::default(), true);
    let metrics = engine.metrics();
    assert_eq!(metrics.snapshot().statistics.steps, 0);
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = records.clone();
    engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.clone())));
    engine.set_graph_mode(GraphMode::FullDecodeOnly).unwrap();
    for prompt in 1..5 {
        engine.add(Request::new(vec![1; prompt], 3)).unwrap();
    }
    engine.run(&mut Vec::new()).unwrap();
    let Snapshot { statistics, load, graphs, .. } = metrics.snapshot();
    assert_eq!(statistics, *engine.statistics());
    assert_eq!(statistics.hits() + statistics.misses(), statistics.steps);
    assert_eq!(statistics.misses[Statistics::LAUNCHED_BY_MODE], 1, "the step of prompts");
    assert_eq!((load.running, load.free_kv_pages), (0, load.kv_pages));
    assert_eq!(graphs, engine.captured_graphs() as u64);
    let times = |histograms: &[Histogram; 3]| histograms.iter().map(Histogram::count).sum::<u64>();
    assert_eq!(times(&statistics.gpu_time), statistics.steps);
    assert_eq!(times(&statistics.wall_time), statistics.steps);
    // The fake device takes a microsecond for each command.
    let records = records.lock().unwrap();
    let gpu_us: f64 = records.iter().map(|record| record.gpu_us.unwrap()).sum();
    let counted: std::time::Duration = statistics.gpu_time.iter().map(|h| h.sum).sum();
    assert!((gpu_us - counted.as_secs_f64() * 1e6).abs() < 1e-6);
    assert!(records.iter().all(|record| record.gpu_us.unwrap() >= 3.0), "in, run, out");
    assert!(metrics.text().unwrap().contains("piecewise_steps_total{mode=\"full\",size="));
}

#[test]
fn tokens_past_a_stop_id_are_dropped_and_the_conversation_goes_on() {
    let mut engine = engine(&Setup::default(), true);
    let first = next_id(&[5], Sampling::default());
    let second = next_id(&[5, first], Sampling::default());
    let mut request = Request { stop_ids: vec![second], keep: true, ..Request::new([5], 20) };
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    let finished =
        |events: &[RequestEvent]| matches!(events.last(), Some(RequestEvent::Finished { .. }));
    while !finished(&events) {
        engine.step(&mut events).unwrap();
    }
    assert_eq!(engine.in_flight.len(), 1, "a step past the stop id is under way");
    request.prompt = vec![9];
    request.stop_ids.clear();
    request.max_tokens = 3;
    engine.extend(id, request.clone()).unwrap();
    events.clear();
    engine.run(&mut events).unwrap();
    let (expected, reason) = simulate(&[5, first, second, 9], &request, 1 << 20);
    assert_eq!(collect(&events, id), (expected, Some(reason)));
    assert_eq!(engine.model().statistics().real_tokens, 1 + 1 + 1 + 1 + 2);
}

#[test]
fn a_full_pool_preempts_the_sequence_admitted_last() {
    let bounds = Bounds { kv_rows: 96, table_pages: 6, tokens: 64, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let requests: Vec<_> = (0..3).map(|i| Request::new(vec![i; 14], 60)).collect();
    let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    assert!(engine.preemptions() > 0);
    for (id, request) in ids.iter().zip(&requests) {
        let (expected, reason) = simulate(&request.prompt, request, 96);
        assert_eq!(collect(&events, *id), (expected, Some(reason)));
    }
    let ends = events.iter().filter(|e| matches!(e, RequestEvent::Finished { .. }));
    let order: Vec<_> = ends.cloned().collect();
    assert!(matches!(order[0], RequestEvent::Finished { request, .. } if request == ids[0]));
}

#[test]
fn removing_a_request_leaves_the_others_alone() {
    let mut engine = engine(&Setup::default(), true);
    let a = engine.add(Request::new([1], 10)).unwrap();
    let request = Request::new([2], 10);
    let b = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    for _ in 0..3 {
        engine.step(&mut events).unwrap();
    }
    engine.remove(a).unwrap();
    let c = engine.add(request.clone()).unwrap();
    engine.run(&mut events).unwrap();
    let (expected, reason) = simulate(&[2], &request, 1 << 20);
    assert_eq!(collect(&events, b), (expected.clone(), Some(reason)));
    assert_eq!(collect(&events, c), (expected, Some(reason)));
    assert!(matches!(engine.remove(a), Err(EngineError::UnknownRequest { .. })));
    assert_eq!(engine.pool().free_pages(), engine.pool().pages());
}

#[test]
fn bad_requests_are_refused_by_name() {
    let mut engine = engine(&Setup::default(), true);
    let mut refused = |request: Request| engine.add(request).unwrap_err().to_string();
    let sampled = |sampling| Request { sampling, ..Request::new([1], 1) };
    let sampling = Sampling::default();
    insta::assert_snapshot!(
        [
            refused(Request::new([], 1)),
            refused(Request::new([3, 97], 1)),
            refused(Request::new([3], 0)),
            refused(Request::new(vec![3; 128], 1)),
            refused(sampled(Sampling { temperature: f32::NAN, ..sampling })),
            refused(sampled(Sampling { top_p: 0.0, ..sampling })),
            refused(sampled(Sampling { top_k: 1 << 31, ..sampling })),
            refused(sampled(Sampling { min_p: 0.1, ..sampling })),
            refused(sampled(Sampling { presence_penalty: -1.0, ..sampling })),
            refused(sampled(Sampling { frequency_penalty: 0.5, ..sampling })),
            refused(sampled(Sampling { repetition_penalty: 1.1, ..sampling })),
            refused(Request { logit_bias: vec![(3, 2.0)], ..Request::new([1], 1) }),
            refused(Request { logprobs: Some(5), ..Request::new([1], 1) }),
        ]
        .join("\n")
    );
    let model = Setup::default().build().unwrap();
    let roles = Setup::roles_of(&model);
    let options = EngineOptions { max_num_seqs: 7, ..EngineOptions::of(&model, &roles) };
    let error = BatchingEngine::new(model, roles, options).unwrap_err();
    assert!(error.to_string().contains("max_num_seqs = 7"), "{error}");
}

#[test]
fn every_step_is_recorded() {
    let setup = Setup { bounds: Bounds { tokens: 8, ..Bounds::default() }, ..Setup::default() };
    let mut engine = engine(&setup, true);
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = records.clone();
    engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.clone())));
    engine.add(Request::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 3)).unwrap();
    engine.add(Request::new([1, 2, 3], 2)).unwrap();
    engine.run(&mut Vec::new()).unwrap();
    let lines: Vec<_> = records.lock().unwrap().iter().map(|r| {
        format!(
            "context={} generation={} sequences={} rows={} tokens={} query={:?} {} size={:?} {:?}",
            r.context_tokens, r.generation_requests, r.sequences, r.rows, r.tokens.unwrap(),
            r.query_length, r.mode.name(), r.size, r.fallback
        )
    }).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn check_poison_shows_an_op_that_reads_past_the_length() {
    let request = Request::new([1, 2, 3], 4);
    let (expected, _) = simulate(&[1, 2, 3], &request, 1 << 20);
    let run = |poison: bool, fault: bool| {
        let mut setup = Setup::default();
        setup.checks.poison = poison;
        setup.faults.read_past_length.store(fault, Ordering::Relaxed);
        let mut engine = engine(&setup, true);
        let id = engine.add(request.clone()).unwrap();
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        collect(&events, id).0
    };
    assert_eq!(run(true, false), expected);
    let poisoned = run(true, true);
    assert_ne!(poisoned, expected);
    assert_eq!(poisoned[0], poisoned[1], "NaN makes every id the same");
    assert_ne!(run(false, true), poisoned);
}

/// What strikes when, and what it costs.
#[test]
fn a_failure_at_any_point_loses_no_request() {
    use crate::mode::GraphMode;
    use std::sync::atomic::Ordering;
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
                let (expected, reason) = simulate(&request.prompt, request, 1 << 20);
                assert_eq!(collect(&events, id), (expected, Some(reason)), "{mode:?} {kind} {at}");
            }
            assert_eq!(engine.pool().free_pages(), engine.pool().pages());
            assert_eq!(engine.entries.len() as u64, engine.roles.sampled_entries);
            if fault.load(Ordering::Relaxed) > 0 {
                continue;
            }
            struck[kind] += 1;
            let stats = engine.statistics();
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
    use std::sync::atomic::Ordering;
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
    let (expected, reason) = simulate(&request.prompt, &request, 1 << 20);
    assert_eq!(collect(&events, id), (expected, Some(reason)));
}

/// A kept conversation goes on after its pages went with the device.
#[test]
fn what_was_kept_survives_a_lost_device() {
    use std::sync::atomic::Ordering;
    let setup = Setup::default();
    let mut engine = engine(&setup, true);
    let id = engine.add(Request { keep: true, ..Request::new([1, 2, 3], 4) }).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let whole = [engine.ids(id).unwrap(), &[9, 9]].concat();
    let other = engine.add(Request::new([5], 3)).unwrap();
    setup.faults.losing_wait.store(1, Ordering::Relaxed);
    engine.run(&mut events).unwrap();
    assert_eq!((engine.statistics().recoveries, engine.kept()), (1, &[id][..]));
    engine.extend(id, Request::new([9, 9], 5)).unwrap();
    events.clear();
    engine.run(&mut events).unwrap();
    let (expected, _) = simulate(&whole, &Request::new(whole.clone(), 5), 1 << 20);
    assert_eq!(collect(&events, id).0, expected);
    assert_eq!(engine.ids(other), None);
    assert_eq!(engine.pool().free_pages(), engine.pool().pages());
}

#[test]
fn usage_tells_what_a_turn_took() {
    let mut engine = engine(&Setup::default(), true);
    let id = engine.add(Request { keep: true, ..Request::new([1, 2, 3], 4) }).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    assert_eq!(engine.kept(), [id]);
    engine.extend(id, Request::new([9, 9], 2)).unwrap();
    assert_eq!(engine.usage(id), Some(Usage { prompt: 9, cached: 0, generated: 0 }));
    engine.run(&mut events).unwrap();
    let usages = events.iter().filter_map(|event| match event {
        RequestEvent::Finished { usage, .. } => Some(*usage),
        _ => None,
    });
    assert_eq!(
        usages.collect::<Vec<_>>(),
        [
            Usage { prompt: 3, cached: 0, generated: 4 },
            Usage { prompt: 9, cached: 6, generated: 2 },
        ]
    );
    assert_eq!(engine.usage(id), None);
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
        let captured = engine.statistics().captures;
        engine.suspend(SuspendedWeights::Keep, &mut events).unwrap();
        assert_eq!(engine.suspended(), Some(SuspendedWeights::Keep));
        assert_eq!(engine.pool().free_pages(), engine.pool().pages());
        let error = engine.step(&mut events).unwrap_err();
        assert!(error.to_string().contains("suspended"), "{error}");
        engine.add(Request::new([9], 2)).unwrap();
        engine.resume(None).unwrap();
        engine.run(&mut events).unwrap();
        for (id, request) in &requests {
            let (expected, reason) = simulate(&request.prompt, request, 1 << 20);
            assert_eq!(collect(&events, *id), (expected, Some(reason)), "after {steps} steps");
        }
        let (id, request) = &requests[1];
        let more = Request { prompt: vec![3], keep: false, ..request.clone() };
        let ids = engine.ids(*id).unwrap().to_vec();
        engine.extend(*id, more.clone()).unwrap();
        events.clear();
        engine.run(&mut events).unwrap();
        let (expected, _) = simulate(&[&ids[..], &[3]].concat(), &more, 1 << 20);
        assert_eq!(collect(&events, *id).0, expected, "a conversation that was kept goes on");
        assert_eq!(engine.statistics().captures, captured, "graphs stay");
        assert_eq!(engine.preemptions(), 0);
    }
}

/// The fake device takes a microsecond for each command, and marks take none.
#[test]
fn the_parts_of_a_traced_step_are_the_step() {
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = engine(&Setup { mode, ..Setup::default() }, true);
        let records = Arc::new(Mutex::new(Vec::new()));
        let sink = records.clone();
        engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.clone())));
        engine.trace_steps(true).unwrap();
        for prompt in 1..4 {
            engine.add(Request::new(vec![1; prompt], 4)).unwrap();
        }
        engine.run(&mut Vec::new()).unwrap();
        let traces = engine.take_traces();
        let mut bytes = Vec::new();
        let mut writer = StepTraceWriter::new(engine.module(), "fake", &mut bytes).unwrap();
        let records = records.lock().unwrap();
        assert_eq!(traces.len(), records.len());
        for (step, record) in traces.iter().zip(&*records) {
            let sum: std::time::Duration =
                step.spans.iter().map(|span| span.end - span.start).sum();
            assert_eq!(sum.as_micros() as f64, record.gpu_us.unwrap());
            let between = step.spans.windows(2).all(|pair| pair[0].end == pair[1].start);
            assert!(between && step.submit.0 <= step.submit.1 && step.read.0 <= step.read.1);
            let steps = &engine.module().stitch().unwrap().steps;
            let members = if mode == GraphMode::Full { 1 } else { steps.len() };
            assert_eq!(step.spans.len(), members + 2, "{:?}", step.spans);
            writer.write(step).unwrap();
        }
        writer.finish().unwrap();
        let slices = slices(&bytes);
        let of_steps = slices.iter().filter(|slice| slice.starts_with("fake/steps ")).count();
        assert_eq!(of_steps, traces.iter().map(|step| step.spans.len() + 1).sum::<usize>());
        assert_eq!(
            slices.iter().filter(|s| s.starts_with("host/submits submit")).count(),
            traces.len()
        );
        assert!(engine.take_traces().is_empty());
        engine.trace_steps(false).unwrap();
    }
}
