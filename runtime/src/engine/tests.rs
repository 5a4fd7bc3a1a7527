use super::*;
use crate::batch::Sampling;
use crate::testing::{Bounds, Setup, VOCAB, next_id};
use crate::words::{CaptureWhen, FinishReason, GraphMode, RequestId, StepMode};
use piecewise_backend::tuning::TuneMode;
use piecewise_testing::soak;
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

mod bad_logits;
mod failures;
mod order;
mod prefix;
mod rows;
mod watch;

fn engine(setup: &Setup, run_ahead: bool) -> Engine {
    let model = setup.build().unwrap();
    let roles = Setup::roles_of(&model);
    let options = EngineOptions { run_ahead, ..EngineOptions::of(&model, &roles) };
    Engine::new(model, roles, options).unwrap()
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

/// Holds that a turn of a request gave what a simulation gives for `text`, its own prompt and all ids
/// before it, and returns that.
#[track_caller]
fn assert_answer(
    engine: &Engine,
    events: &[RequestEvent],
    id: RequestId,
    text: &[u32],
    request: &Request,
) -> Vec<u32> {
    let (expected, reason) = simulate(text, request, engine.options().max_seq_len);
    assert_eq!(collect(events, id), (expected.clone(), Some(reason)));
    expected
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
            prompt: prompt.into(),
            max_tokens,
            stop_ids: stop_ids.into(),
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
                ..Bounds::default()
            };
            setup.token_sizes.retain(|&size| size <= tokens);
            setup.checks.compare = compare;
            setup
        })
}

/// Where a request has states, nothing may be measured that would overwrite them.
#[test]
fn launches_are_measured_where_a_mode_is_changed_and_nobody_has_a_state() {
    piecewise_testing::host_time::hold();
    for is_idle in [true, false] {
        let setup = Setup { mode: GraphMode::Full, tune: TuneMode::Measure, ..Setup::default() };
        let mut engine = engine(&setup, true);
        let (request, mut events) = (Request::new(vec![4, 5, 6], 8), Vec::new());
        let first = engine.add(request.clone()).unwrap();
        engine.step(&mut events).unwrap();
        while is_idle && engine.step(&mut events).unwrap() {}
        setup.faults.slow_replays.store(true, Ordering::Relaxed);
        engine.set_graph_mode(GraphMode::Piecewise).unwrap();
        setup.faults.slow_replays.store(false, Ordering::Relaxed);
        let second = engine.add(request.clone()).unwrap();
        engine.run(&mut events).unwrap();
        for id in [first, second] {
            assert_answer(&engine, &events, id, &request.prompt, &request);
        }
        assert_eq!(engine.model().statistics().misses["launches_faster"] > 0, is_idle);
    }
}

/// Graphs that come to be beside requests are compared once there are none, where somebody asks.
#[test]
fn launches_are_measured_of_what_was_captured_late() {
    piecewise_testing::host_time::hold();
    for capture in [CaptureWhen::Lazy, CaptureWhen::Background] {
        let mode = GraphMode::Piecewise;
        let setup = Setup { mode, capture, tune: TuneMode::Measure, ..Setup::default() };
        let slow = |replays, launches| {
            setup.faults.slow_replays.store(replays, Ordering::Relaxed);
            setup.faults.slow_launches.store(launches, Ordering::Relaxed);
        };
        let mut engine = engine(&setup, true);
        let launched = |engine: &Engine| {
            engine.model().statistics().misses.get("launches_faster").copied().unwrap_or(0)
        };
        let ask = |engine: &mut Engine| {
            let (before, mut events) = (launched(engine), Vec::new());
            let request = Request::new(vec![4, 5, 6], 8);
            let id = engine.add(request.clone()).unwrap();
            engine.run(&mut events).unwrap();
            assert_answer(engine, &events, id, &request.prompt, &request);
            launched(engine) > before
        };
        slow(true, false);
        assert!(!ask(&mut engine) && !ask(&mut engine), "{capture:?}: there were requests");
        while engine.capture_next().unwrap() {}
        for (replays, launches) in [(true, false), (false, true), (true, false)] {
            slow(replays, launches);
            engine.set_graph_mode(mode).unwrap();
            assert_eq!(ask(&mut engine), replays, "{capture:?}");
        }
    }
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
            let ids = assert_answer(&engine, &events, id, &request.prompt, request);
            let all = [&request.prompt[..], &ids].concat();
            prop_assert_eq!(engine.ids(id).map(<[u32]>::to_vec), request.keep.then(|| all.clone()));
            let room = all.len() + next.prompt.len() < bound as usize;
            match engine.extend(id, next.clone()) {
                Ok(()) => {
                    prop_assert!(request.keep && room);
                    second.push((id, [&all, &next.prompt[..]].concat(), next));
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
            assert_answer(&engine, &events, id, &prompt, next);
            if next.keep {
                engine.remove(id).unwrap();
            }
        }
        prop_assert_eq!(engine.pool.free_pages(), engine.pool.pages());
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
        let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
        let mut events = Vec::new();
        for &mode in modes.iter().cycle() {
            engine.set_graph_mode(mode).unwrap();
            prop_assert_eq!(engine.model().dispatcher().mode, mode);
            if !engine.step(&mut events).unwrap() {
                break;
            }
        }
        for (id, request) in ids.into_iter().zip(&requests) {
            assert_answer(&engine, &events, id, &request.prompt, request);
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
        prop_assert_eq!(engine.pool.free_pages(), engine.pool.pages());
    }
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
fn tokens_past_a_stop_id_are_dropped_and_the_conversation_goes_on() {
    let mut engine = engine(&Setup::default(), true);
    let first = next_id(&[5], Sampling::default());
    let second = next_id(&[5, first], Sampling::default());
    let mut request =
        Request { stop_ids: vec![second].into(), keep: true, ..Request::new([5], 20) };
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    let finished =
        |events: &[RequestEvent]| matches!(events.last(), Some(RequestEvent::Finished { .. }));
    while !finished(&events) {
        engine.step(&mut events).unwrap();
    }
    assert_eq!(engine.in_flight.len(), 1, "a step past the stop id is under way");
    request.prompt = vec![9].into();
    request.stop_ids = [].into();
    request.max_tokens = 3;
    engine.extend(id, request.clone()).unwrap();
    events.clear();
    engine.run(&mut events).unwrap();
    assert_answer(&engine, &events, id, &[5, first, second, 9], &request);
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
    assert!(engine.preemptions > 0);
    for (id, request) in ids.iter().zip(&requests) {
        assert_answer(&engine, &events, *id, &request.prompt, request);
    }
    let ends = events.iter().filter(|e| matches!(e, RequestEvent::Finished { .. }));
    let order: Vec<_> = ends.cloned().collect();
    assert!(matches!(order[0], RequestEvent::Finished { request, .. } if request == ids[0]));
}

#[test]
fn removing_a_request_frees_its_pages_and_leaves_the_others_alone() {
    let mut engine = engine(&Setup::default(), true);
    let a = engine.add(Request::new([1], 10)).unwrap();
    let request = Request::new([2], 10);
    let b = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    for _ in 0..3 {
        engine.step(&mut events).unwrap();
    }
    let (free, held) = (engine.pool.free_pages(), engine.sequences[&a].table.pages().len());
    engine.remove(a).unwrap();
    assert!(held > 0 && !engine.in_flight.is_empty(), "it runs, and a step is under way");
    assert_eq!(engine.pool.free_pages(), free + held, "at once");
    let c = engine.add(request.clone()).unwrap();
    engine.run(&mut events).unwrap();
    for id in [b, c] {
        assert_answer(&engine, &events, id, &[2], &request);
    }
    assert!(matches!(engine.remove(a), Err(EngineError::UnknownRequest { .. })));
    assert_eq!(engine.pool.free_pages(), engine.pool.pages());
}

#[test]
fn a_top_p_of_0_takes_the_largest_logit() {
    let mut engine = engine(&Setup::default(), true);
    let sampling = Sampling { temperature: 0.7, top_p: 0.0, seed: 3, ..Sampling::default() };
    let greedy = Request::new([1, 2], 6);
    let request = Request { sampling, keep: true, ..greedy.clone() };
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let (expected, _) = simulate(&[1, 2], &greedy, 1 << 20);
    assert_eq!(collect(&events, id).0, expected);
    let before = engine.ids(id).unwrap().to_vec();
    engine.extend(id, request).unwrap();
    events.clear();
    engine.run(&mut events).unwrap();
    let (expected, _) = simulate(&[&before[..], &[1, 2]].concat(), &greedy, 1 << 20);
    assert_eq!(collect(&events, id).0, expected, "in a later turn, too");
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
            refused(sampled(Sampling { top_p: -0.5, ..sampling })),
            refused(sampled(Sampling { top_k: 1 << 31, ..sampling })),
            refused(sampled(Sampling { min_p: 0.1, ..sampling })),
            refused(sampled(Sampling { presence_penalty: -1.0, ..sampling })),
            refused(sampled(Sampling { frequency_penalty: 0.5, ..sampling })),
            refused(sampled(Sampling { repetition_penalty: 1.1, ..sampling })),
            refused(Request { logit_bias: vec![(3, 2.0)].into(), ..Request::new([1], 1) }),
            refused(Request { logprobs: Some(5), ..Request::new([1], 1) }),
        ]
        .join("\n")
    );
    let model = Setup::default().build().unwrap();
    let roles = Setup::roles_of(&model);
    let options = EngineOptions { max_num_seqs: 7, ..EngineOptions::of(&model, &roles) };
    let error = Engine::new(model, roles, options).unwrap_err();
    assert!(error.to_string().contains("max_num_seqs = 7"), "{error}");
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
