//! Priorities, deadlines, and what a long prompt leaves to others.

use super::*;
use crate::engine::schedule::MOST_PASSED;
use crate::words::{FinishReason, RequestId};
use std::time::{Duration, Instant};

/// The requests in the order of their first tokens.
fn first_tokens(events: &[RequestEvent]) -> Vec<RequestId> {
    let mut order = Vec::new();
    for event in events {
        if let RequestEvent::Token { request, .. } = event
            && !order.contains(request)
        {
            order.push(*request);
        }
    }
    order
}

fn of_priority(priority: i32, prompt: impl Into<Arc<[u32]>>, max_tokens: u64) -> Request {
    Request { priority, ..Request::new(prompt, max_tokens) }
}

#[test]
fn the_lower_priority_goes_first_and_of_equal_ones_who_came_first() {
    let bounds = Bounds { sequences: 1, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let priorities = [3, 0, -1, 0, 3, -1];
    let ids = priorities.map(|priority| engine.add(of_priority(priority, [1], 2)).unwrap());
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    assert_eq!(first_tokens(&events), [2, 5, 1, 3, 0, 4].map(|i| ids[i]));
}

/// Each client's requests come all at once, those of the first before everybody's.
#[test]
fn clients_take_turns_by_their_weights_and_nobody_stands_behind_anothers_many() {
    let bounds = Bounds { sequences: 1, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let mut ids = Vec::new();
    let mut ask = |engine: &mut Engine, id, weight: u32, priority| {
        let client = Client { id, weight: weight.try_into().unwrap() };
        let request = Request { client, ..of_priority(priority, [1], 1) };
        ids.push((engine.add(request).unwrap(), id));
    };
    for (client, weight) in [(7, 1), (8, 2)] {
        (0..6).for_each(|_| ask(&mut engine, client, weight, 0));
    }
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    ask(&mut engine, 9, 1, 0);
    ask(&mut engine, 7, 1, -1);
    engine.run(&mut events).unwrap();
    let of = |request| ids.iter().find(|(id, _)| *id == request).unwrap();
    let order = Vec::from_iter(first_tokens(&events).into_iter().map(|request| of(request).1));
    // The first was alone; who is urgent goes before all turns.
    assert_eq!(order, [7, 7, 8, 9, 8, 7, 8, 8, 7, 8, 8, 7, 7, 7]);
    // One client's requests go in the order in which they came.
    let of_seven = first_tokens(&events).into_iter().filter(|id| of(*id).1 == 7);
    let of_seven = Vec::from_iter(of_seven);
    assert!(of_seven[2..].is_sorted(), "{of_seven:?}");
}

/// One of those that fill the engine makes room for a client that has none there, and nothing is lost.
#[test]
fn who_fills_the_engine_for_long_keeps_nobody_else_out() {
    for run_ahead in [false, true] {
        let bounds = Bounds { sequences: 3, ..Bounds::default() };
        let mut engine = engine(&Setup { bounds, ..Setup::default() }, run_ahead);
        let of = |id, priority, prompt: u32, tokens| {
            let client = Client { id, ..Client::default() };
            Request { client, ..of_priority(priority, [prompt], tokens) }
        };
        let mut requests = Vec::from_iter((1..=5).map(|prompt| of(1, 0, prompt, 60)));
        let mut ids = Vec::from_iter(requests.iter().map(|r| engine.add(r.clone()).unwrap()));
        let mut events = Vec::new();
        for _ in 0..10 {
            engine.step(&mut events).unwrap();
        }
        // One that matters less makes nobody yield.
        for request in [of(2, 0, 7, 3), of(3, 1, 8, 3), of(2, 0, 9, 3)] {
            ids.push(engine.add(request.clone()).unwrap());
            requests.push(request);
        }
        for _ in 0..12 {
            engine.step(&mut events).unwrap();
        }
        assert_answer(&engine, &events, ids[5], &requests[5].prompt, &requests[5]);
        assert_answer(&engine, &events, ids[7], &requests[7].prompt, &requests[7]);
        assert!(collect(&events, ids[6]).0.is_empty());
        assert!(collect(&events, ids[0]).1.is_none(), "the others go on");
        let yielded = Vec::from_iter(events.iter().filter_map(|event| match event {
            RequestEvent::Preempted { request } => Some(*request),
            _ => None,
        }));
        // Each time the one that began last; the next of its client had taken the place that was left.
        assert_eq!(yielded, [ids[2], ids[3]]);
        engine.run(&mut events).unwrap();
        for (id, request) in ids.iter().zip(&requests) {
            assert_answer(&engine, &events, *id, &request.prompt, request);
        }
        assert_eq!(engine.pool.free_pages(), engine.pool.pages());
    }
}

#[test]
fn an_urgent_prompt_does_not_wait_for_a_long_one() {
    let bounds = Bounds { tokens: 8, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let requests =
        [of_priority(0, vec![1; 90], 3), of_priority(0, [2], 3), of_priority(-1, [3], 3)];
    let mut events = Vec::new();
    let long = engine.add(requests[0].clone()).unwrap();
    engine.step(&mut events).unwrap();
    let [later, urgent] = [1, 2].map(|i| engine.add(requests[i].clone()).unwrap());
    engine.run(&mut events).unwrap();
    assert_eq!(first_tokens(&events), [urgent, long, later]);
    for (id, request) in [long, later, urgent].into_iter().zip(&requests) {
        assert_answer(&engine, &events, id, &request.prompt, request);
    }
}

/// Nobody that decodes waits for a prompt: each step of the prompt's brings it a token.
#[test]
fn a_long_prompt_starves_nobody_who_decodes() {
    let bounds = Bounds { tokens: 8, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, false);
    let mut events = Vec::new();
    let talk = engine.add(Request::new([1], 20)).unwrap();
    engine.step(&mut events).unwrap();
    engine.add(of_priority(-5, vec![2; 100], 1)).unwrap();
    for tokens in 2..15 {
        engine.step(&mut events).unwrap();
        assert_eq!(collect(&events, talk).0.len(), tokens);
    }
}

#[test]
fn a_full_pool_preempts_who_matters_least() {
    let bounds = Bounds { kv_rows: 96, table_pages: 6, tokens: 64, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let requests = [1, 0, 1].map(|p| of_priority(p, vec![p as u32 + 5; 14], 60));
    let ids = requests.each_ref().map(|request| engine.add(request.clone()).unwrap());
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    assert!(engine.preemptions > 0);
    for (id, request) in ids.iter().zip(&requests) {
        assert_answer(&engine, &events, *id, &request.prompt, request);
    }
    let ends = events.iter().filter_map(|event| match event {
        RequestEvent::Finished { request, .. } => Some(*request),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [ids[1], ids[0], ids[2]]);
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    let bounds = Bounds { sequences: 2, ..Bounds::default() };
    let setup = Setup { bounds, ..Setup::default() };
    for run_ahead in [false, true] {
        let mut engine = engine(&setup, run_ahead);
        let (mut events, passed) = (Vec::new(), Some(Instant::now()));
        let far = Some(Instant::now() + Duration::from_secs(1000));
        let talks = engine.add(Request { deadline: far, ..Request::new([1], 9) }).unwrap();
        let runs = engine.add(Request { keep: true, ..Request::new([2], 9) }).unwrap();
        for _ in 0..3 {
            engine.step(&mut events).unwrap();
        }
        // As if it had been asked for with this deadline, and now is past it.
        engine.sequences.get_mut(&runs).unwrap().deadline = passed;
        engine.deadlines.insert((passed.unwrap(), runs));
        let waits = engine.add(Request { deadline: passed, ..Request::new([3], 9) }).unwrap();
        engine.run(&mut events).unwrap();
        assert_answer(&engine, &events, talks, &[1], &Request::new([1], 9));
        assert_eq!(collect(&events, waits), (Vec::new(), Some(FinishReason::Deadline)));
        let (known, reason) = collect(&events, runs);
        assert_eq!(
            (known.len(), reason),
            (if run_ahead { 2 } else { 3 }, Some(FinishReason::Deadline))
        );
        assert!(engine.deadlines.is_empty());
        // What it knows by then goes on another time.
        let more = Request::new([7], 3);
        let ids = [&[2][..], &known, &[7]].concat();
        engine.extend(runs, more.clone()).unwrap();
        events.clear();
        engine.run(&mut events).unwrap();
        assert_answer(&engine, &events, runs, &ids, &more);
        assert_eq!(engine.pool.free_pages(), engine.pool.pages());
        assert_eq!(engine.entries.len() as u64, engine.roles.sampled_entries);
    }
}

/// What finds no room lets others of its priority past, but not for ever, and none that matter less.
#[test]
fn a_prompt_without_room_blocks_nobody_and_is_not_passed_for_ever() {
    let bounds =
        Bounds { kv_rows: 128, table_pages: 8, tokens: 64, sequences: 3, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let mut events = Vec::new();
    let long = engine.add(Request::new(vec![1; 60], 20)).unwrap();
    engine.step(&mut events).unwrap();
    let large = Request::new(vec![2; 70], 4);
    let large_id = engine.add(large.clone()).unwrap();
    engine.add(of_priority(1, [9], 1)).unwrap();
    let small: Vec<_> = (0..40).map(|i| Request::new([i % 50, 3], 2)).collect();
    let ids: Vec<_> = small.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
    engine.run(&mut events).unwrap();
    let order = first_tokens(&events);
    let place = |id| order.iter().position(|other| *other == id).unwrap();
    assert_eq!(place(long), 0);
    assert!(place(ids[0]) < place(large_id), "nobody passes: {order:?}");
    let passed = ids.iter().filter(|id| place(**id) < place(large_id)).count();
    assert!(passed <= MOST_PASSED as usize, "{passed} passed");
    assert_eq!(order.last().map(|id| place(*id)), Some(order.len() - 1));
    for (id, request) in ids.iter().zip(&small).chain([(&large_id, &large)]) {
        assert_answer(&engine, &events, *id, &request.prompt, request);
    }
}
