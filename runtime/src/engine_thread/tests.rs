use super::*;
use crate::batch::Sampling;
use crate::engine::{Client, Engine, EngineOptions, Request};
use crate::testing::{Bounds, FakeCompiler, Faults, Setup, next_id};
use crate::words::{CaptureWhen, FinishReason, OnCaptureFailure, SuspendedWeights};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

mod sleep;

fn engine(setup: &Setup) -> Engine {
    let model = setup.build().unwrap();
    let roles = Setup::roles_of(&model);
    let options = EngineOptions::of(&model, &roles);
    Engine::new(model, roles, options).unwrap()
}

fn start(setup: &Setup, max_queue: usize) -> EngineThread {
    let options = ThreadOptions { max_queue, ..ThreadOptions::default() };
    EngineThread::start(engine(setup), options).unwrap()
}

fn request(number: u32) -> Request {
    Request::new(vec![number % 7 + 1; number as usize % 5 + 1], u64::from(number % 9 + 12))
}

/// The ids that a request of its own gets.
fn expected(number: u32) -> Vec<u32> {
    let Request { prompt, max_tokens, .. } = request(number);
    let mut prompt = prompt.to_vec();
    let start = prompt.len();
    for _ in 0..max_tokens {
        prompt.push(next_id(&prompt, Sampling::default()));
    }
    prompt.split_off(start)
}

fn submit(handle: &EngineHandle, request: Request) -> (Ticket, Receiver<Update>) {
    let (sender, updates) = mpsc::channel();
    let ticket = handle.submit(request, Box::new(move |update| drop(sender.send(update))));
    (ticket.unwrap(), updates)
}

/// The same, and the thread waits with its first token until the sender is dropped.
fn submit_and_hold(
    handle: &EngineHandle,
    request: Request,
) -> (Ticket, Receiver<Update>, mpsc::Sender<()>) {
    let (sender, updates) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let sink = move |update| {
        let is_token = matches!(update, Update::Token { .. });
        drop(sender.send(update));
        if is_token {
            let _ = held.recv();
        }
    };
    let ticket = handle.submit(request, Box::new(sink)).unwrap();
    while !matches!(updates.recv(), Ok(Update::Token { .. })) {}
    (ticket, updates, release)
}

/// The ids of a request, and its end.
fn outcome(updates: &Receiver<Update>) -> (Vec<u32>, Option<Update>) {
    let (mut ids, mut end) = (Vec::new(), None);
    for update in updates {
        assert!(end.is_none(), "{update:?} after the end");
        match update {
            Update::Preempted => {}
            Update::Accepted { .. } | Update::PromptToken { .. } => {
                assert!(ids.is_empty(), "a token before");
            }
            Update::Token { id, .. } => ids.push(id),
            Update::Finished { .. } | Update::Failed(_) => end = Some(update),
        }
    }
    (ids, end)
}

fn assert_answered(number: u32, updates: &Receiver<Update>) {
    let (ids, end) = outcome(updates);
    assert_eq!(ids, expected(number), "request {number}: {end:?}");
    let Some(Update::Finished { reason, usage, .. }) = end else { panic!("{end:?}") };
    assert_eq!((reason, usage.generated), (FinishReason::Length, ids.len() as u64));
}

/// Lets the thread do nothing until the sender is used or dropped.
fn hold(handle: &EngineHandle) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let (arrived, is_held) = mpsc::channel();
    drop(handle.call(move |_| {
        arrived.send(()).unwrap();
        let _ = held.recv();
    }));
    is_held.recv().unwrap();
    release
}

#[test]
fn requests_of_many_threads_get_their_ids_and_nothing_is_left() {
    let thread = start(&Setup::default(), 64);
    std::thread::scope(|scope| {
        for number in 0..40 {
            let handle = thread.handle().clone();
            scope.spawn(move || {
                let (_ticket, updates) = submit(&handle, request(number));
                assert_answered(number, &updates);
            });
        }
    });
    assert_eq!(thread.handle().live_requests(), 0);
    let text = thread.metrics().text().unwrap();
    assert!(text.contains("finished_reason=\"length\",model_name=\"model\"} 40"), "{text}");
    let engine = thread.finish().unwrap();
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
    let stats = engine.model().statistics();
    assert_eq!(stats.hits() + stats.misses(), stats.steps);
}

/// What the steps on their way bring is not lost, and everything goes on where it was.
#[test]
fn requests_of_a_suspended_engine_go_on_once_it_is_resumed() {
    for weights in [SuspendedWeights::Keep, SuspendedWeights::Drop] {
        let thread = start(&Setup::default(), 64);
        let handle = thread.handle();
        let (_first, of_first, release) = submit_and_hold(handle, request(1));
        let others = [2, 3].map(|number| (number, submit(handle, request(number))));
        let suspended = handle.suspend(weights);
        drop(release);
        suspended.recv().unwrap().unwrap();
        let found = handle.call(|engine| engine.model().suspended()).recv().unwrap();
        assert_eq!(found, Some(weights));
        assert_eq!(handle.live_requests(), 3);
        let resumed = handle.call(|engine| engine.resume(Some(&FakeCompiler::WEIGHTS)));
        resumed.recv().unwrap().unwrap();
        assert_eq!(outcome(&of_first).0, expected(1)[1..]);
        for (number, (_ticket, updates)) in &others {
            assert_answered(*number, updates);
        }
    }
}

#[test]
fn whoever_is_sent_back_to_wait_hears_of_it() {
    let bounds = Bounds { kv_rows: 96, table_pages: 6, tokens: 64, ..Bounds::default() };
    let thread = start(&Setup { bounds, ..Setup::default() }, 8);
    let held = hold(thread.handle());
    let asked = |id| submit(thread.handle(), Request::new(vec![id; 14], 60));
    let asked = [1, 2, 3].map(asked);
    drop(held);
    let mut told = 0;
    for (_ticket, updates) in &asked {
        let (mut own, mut end) = (0, None);
        for update in updates {
            match update {
                Update::Preempted => own += 1,
                Update::Finished { usage, .. } => end = Some(usage),
                _ => {}
            }
        }
        let usage = end.unwrap();
        assert_eq!((usage.preemptions, usage.generated), (own, 60));
        told += own;
    }
    let engine = thread.finish().unwrap();
    assert!(told > 0);
    assert_eq!(engine.load().preemptions, told);
}

#[test]
fn what_is_refused_harms_nobody_else() {
    let thread = start(&Setup::default(), 8);
    let held = hold(thread.handle());
    let (_good, good) = submit(thread.handle(), request(1));
    let (_bad, bad) = submit(thread.handle(), Request::new([1_000_000], 3));
    let (_empty, empty) = submit(thread.handle(), Request::new([], 3));
    drop(held);
    for updates in [bad, empty] {
        let (_, end) = outcome(&updates);
        assert!(matches!(end, Some(Update::Failed(Failure::Refused(_)))), "{end:?}");
    }
    assert_answered(1, &good);
}

#[test]
fn the_queue_is_bounded_and_several_requests_go_in_together_or_not_at_all() {
    let thread = start(&Setup::default(), 2);
    let handle = thread.handle();
    let bound = handle.options().max_num_seqs as usize + 2;
    let held = hold(handle);
    let taken: Vec<_> = (0..bound - 1).map(|i| submit(handle, request(i as u32))).collect();
    let two = || vec![(request(0), Box::new(|_| {}) as Sink), (request(0), Box::new(|_| {}))];
    let live = bound - 1;
    assert_eq!(handle.submit_all(two()).unwrap_err(), SubmitError::Full { live, bound });
    let many = (0..=bound).map(|_| (request(0), Box::new(|_| {}) as Sink)).collect();
    let too_many = SubmitError::TooMany { count: bound + 1, bound };
    assert_eq!(handle.submit_all(many).unwrap_err(), too_many);
    let last = submit(handle, request(live as u32));
    let full = handle.submit(request(0), Box::new(|_| {})).unwrap_err();
    assert_eq!(full, SubmitError::Full { live: bound, bound });
    drop(held);
    for (i, (_ticket, updates)) in taken.into_iter().chain([last]).enumerate() {
        assert_answered(i as u32, &updates);
    }
    let (_ticket, updates) = submit(handle, request(3));
    assert_answered(3, &updates);
}

#[test]
fn who_has_few_requests_there_finds_a_place_however_many_others_have() {
    let thread = start(&Setup::default(), 2);
    let handle = thread.handle();
    let bound = handle.options().max_num_seqs as usize + 2;
    let held = hold(handle);
    let of = |client, number| Request {
        client: Client { id: client, ..Client::default() },
        ..request(number)
    };
    let taken = Vec::from_iter((0..bound).map(|i| submit(handle, of(1, i as u32))));
    let ask = |client| handle.submit(of(client, 0), Box::new(|_| {}));
    let full = SubmitError::Full { live: bound, bound };
    assert_eq!(ask(1).unwrap_err(), full);
    let few = bound.min(8) / 2;
    let (mut others, mut client) = (Vec::new(), 2);
    // Each has its few, up to a bound on all of them.
    while let Ok(ticket) = ask(client) {
        others.push(ticket);
        others.extend((1..few).map_while(|_| ask(client).ok()));
        if others.len() < few.max(bound / 4) {
            assert_eq!(others.len() % few, 0, "client {client} has its few");
            assert!(ask(client).is_err(), "and no more");
        }
        client += 1;
    }
    assert_eq!(others.len(), few.max(bound / 4));
    drop((held, others));
    for (i, (_ticket, updates)) in taken.into_iter().enumerate() {
        assert_answered(i as u32, &updates);
    }
}

#[test]
fn a_dropped_ticket_frees_its_pages_before_the_next_step() {
    let thread = start(&Setup::default(), 8);
    let (gone, dropped, held) = submit_and_hold(thread.handle(), Request::new([3], 100));
    let (_stays, stays) = submit(thread.handle(), request(2));
    let has_pages =
        thread.handle().call(|engine| engine.load().free_kv_pages < engine.load().kv_pages);
    let steps = thread.handle().call(|engine| engine.model().statistics().steps);
    drop(gone);
    let after = thread.handle().call(|engine| {
        (engine.model().statistics().steps, engine.load().free_kv_pages == engine.load().kv_pages)
    });
    drop(held);
    assert!(has_pages.recv().unwrap(), "it has pages");
    assert_eq!(after.recv().unwrap(), (steps.recv().unwrap(), true), "gone, and no step between");
    let (_, end) = outcome(&dropped);
    assert!(end.is_none(), "{end:?}");
    assert_answered(2, &stays);
    let engine = thread.finish().unwrap();
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
}

#[test]
fn a_request_that_has_enough_ends_as_one_that_stopped() {
    let thread = start(&Setup::default(), 8);
    let (ticket, updates, held) = submit_and_hold(thread.handle(), Request::new([3], 100));
    ticket.end();
    ticket.end();
    drop(held);
    let (ids, end) = outcome(&updates);
    let Some(Update::Finished { reason, usage, .. }) = end else { panic!("{end:?}") };
    assert_eq!((reason, usage.prompt), (FinishReason::Stop, 1));
    assert_eq!(usage.generated, 1 + ids.len() as u64);
    drop(ticket);
    let engine = thread.finish().unwrap();
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
    let text = engine_text(engine);
    assert!(text.contains("finished_reason=\"stop\",model_name=\"model\"} 1"), "{text}");
    assert!(text.contains("finished_reason=\"abort\",model_name=\"model\"} 0"), "{text}");
}

fn engine_text(mut engine: Engine) -> String {
    engine.metrics().text().unwrap()
}

#[test]
fn a_drained_thread_ends_its_requests_and_a_stopped_one_does_not_wait() {
    for drains in [true, false] {
        let thread = start(&Setup::default(), 64);
        let handle = thread.handle().clone();
        let held = hold(&handle);
        let requests: Vec<_> = (0..12).map(|number| submit(&handle, request(number))).collect();
        if drains {
            handle.drain()
        } else {
            handle.stop()
        }
        let refused = handle.submit(request(0), Box::new(|_| {})).unwrap_err();
        assert_eq!(refused, SubmitError::ShuttingDown);
        drop(held);
        for (number, (_ticket, updates)) in requests.into_iter().enumerate() {
            if drains {
                assert_answered(number as u32, &updates);
                continue;
            }
            let (_, end) = outcome(&updates);
            assert!(matches!(end, Some(Update::Failed(Failure::Stopped))), "{end:?}");
        }
        let engine = thread.finish().unwrap();
        assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
        assert_eq!((handle.phase(), handle.live_requests()), (Phase::Stopped, 0));
        assert!(handle.call(|_| ()).recv().is_err(), "nobody is left to answer");
    }
}

#[test]
fn a_lost_device_is_opened_anew_while_32_requests_run() {
    let faults = Faults::default();
    let thread = start(&Setup { faults: faults.clone(), ..Setup::default() }, 64);
    let held = hold(thread.handle());
    let requests: Vec<_> = (0..32).map(|i| submit(thread.handle(), request(i))).collect();
    faults.losing_wait.store(9, Ordering::Relaxed);
    drop(held);
    for (number, (_ticket, updates)) in requests.into_iter().enumerate() {
        assert_answered(number as u32, &updates);
    }
    assert_eq!(thread.finish().unwrap().model().statistics().recoveries, 1);
}

/// The engine's own attempts fail; the thread's next one, a moment later, does not.
#[test]
fn a_device_that_is_back_after_a_while_loses_no_request() {
    let faults = Faults::default();
    let thread = start(&Setup { faults: faults.clone(), ..Setup::default() }, 64);
    let held = hold(thread.handle());
    let requests: Vec<_> = (0..32).map(|i| submit(thread.handle(), request(i))).collect();
    faults.failing_reopens.store(2, Ordering::Relaxed);
    faults.losing_wait.store(9, Ordering::Relaxed);
    drop(held);
    for (number, (_ticket, updates)) in requests.into_iter().enumerate() {
        assert_answered(number as u32, &updates);
    }
    let engine = thread.finish().unwrap();
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
}

#[test]
fn a_device_that_stays_lost_ends_each_request_and_serves_once_it_is_back() {
    let faults = Faults::default();
    let thread = start(&Setup { faults: faults.clone(), ..Setup::default() }, 64);
    let held = hold(thread.handle());
    let requests: Vec<_> = (0..32).map(|i| submit(thread.handle(), request(i))).collect();
    faults.failing_reopens.store(u64::MAX, Ordering::Relaxed);
    faults.losing_wait.store(9, Ordering::Relaxed);
    drop(held);
    for (_ticket, updates) in requests {
        let (_, end) = outcome(&updates);
        assert!(matches!(end, Some(Update::Failed(Failure::Engine(_)))), "{end:?}");
    }
    let text = thread.metrics().text().unwrap();
    assert!(text.contains("finished_reason=\"error\",model_name=\"model\"} 32"), "{text}");
    faults.failing_reopens.store(0, Ordering::Relaxed);
    let (_ticket, updates) = submit(thread.handle(), request(4));
    assert_answered(4, &updates);
    let engine = thread.finish().unwrap();
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
}

#[test]
fn missing_graphs_are_captured_while_nothing_else_is_to_be_done() {
    let lazy = Setup {
        capture: CaptureWhen::Lazy,
        on_capture_failure: OnCaptureFailure::Launch,
        ..Setup::default()
    };
    let all = engine(&Setup::default()).model().captured_graphs();
    let thread = start(&lazy, 8);
    let graphs = || thread.handle().call(|engine| engine.model().captured_graphs()).recv().unwrap();
    // Ends as soon as it is so; the bound is for a machine that is busy.
    let captured = (0..120_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        graphs() == all
    });
    assert!(captured, "{} of {all}", graphs());
    assert_eq!(thread.finish().unwrap().model().statistics().steps, 0);
}

#[test]
fn a_thread_that_panics_ends_every_request() {
    let thread = start(&Setup::default(), 8);
    let handle = thread.handle().clone();
    let held = hold(&handle);
    let (_one, one) = submit(&handle, request(1));
    drop(handle.call(|_| panic!("a panic that the test asked for")));
    let (_two, two) = submit(&handle, request(2));
    drop(held);
    for updates in [one, two] {
        let (_, end) = outcome(&updates);
        assert!(matches!(end, Some(Update::Failed(Failure::Stopped))), "{end:?}");
    }
    assert!(thread.finish().is_none());
    assert_eq!(handle.submit(request(0), Box::new(|_| {})).unwrap_err(), SubmitError::ShuttingDown);
}
