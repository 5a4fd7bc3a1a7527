//! Requests whose logits give no id, and requests that no step can be planned for.

use super::*;
use crate::words::{FinishReason, RequestId};

/// Of a request that ends without an id: those before, and what it is told.
fn told(events: &[RequestEvent], of: RequestId) -> (Vec<u32>, String) {
    let (ids, end) = collect(events, of);
    assert_eq!(end, Some(FinishReason::BadLogits));
    let message = events.iter().find_map(|event| match event {
        RequestEvent::Finished { request, message, .. } if *request == of => message.as_deref(),
        _ => None,
    });
    (ids, message.unwrap().to_owned())
}

/// In every mode, read before the next step or after: the step that ran ahead of the error is nobody's.
#[test]
fn a_request_without_an_id_ends_and_no_other_notices() {
    for mode in GraphMode::ALL {
        for run_ahead in [false, true] {
            let setup = Setup { mode, ..Setup::default() };
            let mut engine = engine(&setup, run_ahead);
            let metrics = engine.metrics();
            setup.faults.no_id_at.store(7, Ordering::Relaxed);
            // The first that comes to position 7 has the longest prompt.
            let requests = [&[1u32, 2, 3][..], &[4, 5], &[6]].map(|ids| Request::new(ids, 12));
            let ids = requests.each_ref().map(|request| engine.add(request.clone()).unwrap());
            let mut events = Vec::new();
            engine.run(&mut events).unwrap();
            let (found, message) = told(&events, ids[0]);
            assert_eq!(found, simulate(&[1, 2, 3], &requests[0], 1 << 20).0[..4]);
            assert!(message.starts_with("after 7 tokens") && message.contains("NaN"), "{message}");
            for (id, request) in ids.iter().zip(&requests).skip(1) {
                assert_answer(&engine, &events, *id, &request.prompt, request);
            }
            assert_eq!(engine.load().bad_logits, 1);
            let metrics = metrics.text().unwrap();
            assert!(metrics.contains("\npiecewise_bad_logits_total 1\n"), "{metrics}");
            assert_eq!(engine.pool.free_pages(), engine.pool.pages());
            assert_eq!(engine.entries.len(), 6);
        }
    }
}

/// Nothing goes on from what led to no id: not the next request that begins alike, and not the
/// conversation itself, whose ids stay.
#[test]
fn what_led_to_no_id_is_computed_again() {
    let setup = Setup::default();
    let mut engine = engine(&setup, true);
    let prompt: Vec<u32> = (0..40).collect();
    let request = Request { keep: true, ..Request::new(prompt.clone(), 12) };
    setup.faults.no_id_at.store(43, Ordering::Relaxed);
    let first = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let (ids, _) = told(&events, first);
    assert_eq!((ids.len(), engine.kept()), (3, &[first][..]));
    events.clear();
    let second = engine.add(Request { keep: false, ..request.clone() }).unwrap();
    engine.run(&mut events).unwrap();
    assert_answer(&engine, &events, second, &prompt, &request);
    let cached = |events: &[RequestEvent]| match events.last() {
        Some(RequestEvent::Finished { usage, .. }) => usage.cached,
        _ => unreachable!(),
    };
    assert_eq!(cached(&events), 0);
    engine.clear_prefix_cache();
    let more = Request::new([9], 6);
    engine.extend(first, more.clone()).unwrap();
    events.clear();
    engine.run(&mut events).unwrap();
    let text = [prompt, ids, vec![9]].concat();
    assert_answer(&engine, &events, first, &text, &more);
    assert_eq!(cached(&events), 0);
}

/// The engine names the request and goes on with the others; it does not step for ever.
#[test]
fn a_request_that_no_step_can_be_planned_for_is_an_error() {
    for run_ahead in [false, true] {
        let mut engine = engine(&Setup::default(), run_ahead);
        let requests = [[1, 2], [3, 4]].map(|prompt| engine.add(Request::new(prompt, 3)).unwrap());
        // As of a graph that returns no ids: they are sampled, and nobody reads them.
        let sampled = engine.roles.sampled.take();
        let mut events = Vec::new();
        for request in requests {
            let error = engine.run(&mut events).unwrap_err();
            assert_eq!(error.request(), Some(request), "{error}");
            assert!(error.to_string().contains("sampled and never read back"), "{error}");
        }
        engine.run(&mut events).unwrap();
        assert!(!engine.has_work() && events.is_empty());
        let error = engine.add(Request::new([1], 1)).unwrap_err().to_string();
        assert!(error.contains("returns no sampled ids"), "{error}");
        engine.roles.sampled = sampled;
        let request = Request::new([5], 4);
        let id = engine.add(request.clone()).unwrap();
        engine.run(&mut events).unwrap();
        assert_answer(&engine, &events, id, &[5], &request);
        assert_eq!(engine.pool.free_pages(), engine.pool.pages());
    }
}
