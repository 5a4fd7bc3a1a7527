//! A device that fails while 32 requests run, as clients see it.

use crate::client;
use crate::tiny_engine::{golden, tiny_engine};
use piecewise_server::Outcome;
use piecewise_testing::{DeviceFault, DeviceFaults, FaultKind, FaultPoint};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// How many requests run at once.
const REQUESTS: u32 = 32;
const TOKENS: usize = 64;

/// Faults that are planned once all requests run.
type Planned = Arc<Mutex<Vec<DeviceFault>>>;

/// The tokens of a prompt and, where it ended the answer, the error; streamed or not.
fn ask(address: SocketAddr, case: &Value, stream: bool) -> (Vec<Value>, Option<Value>) {
    let body = json!({
        "prompt": case["ids"], "max_tokens": TOKENS, "temperature": 0, "return_token_ids": true,
        "stream": stream,
    });
    let answer = client::ask(address, "POST /v1/completions", &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = &head[9..12];
    if !stream || status != "200" {
        let said: Value = serde_json::from_str(body).unwrap();
        return match status {
            "200" => (ids_of(&said), None),
            "500" => (Vec::new(), Some(said["error"].clone())),
            _ => panic!("{answer}"),
        };
    }
    // Chunks of the transfer have their lengths between them.
    let events: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (&last, events) = events.split_last().unwrap();
    assert_eq!(last, "[DONE]", "{body}");
    let mut ids = Vec::new();
    for (i, event) in events.iter().enumerate() {
        let event: Value = serde_json::from_str(event).unwrap();
        if let Some(error) = event.get("error") {
            assert_eq!(i + 1, events.len(), "nothing comes after an error: {body}");
            return (ids, Some(error.clone()));
        }
        ids.extend(ids_of(&event));
    }
    (ids, None)
}

fn ids_of(said: &Value) -> Vec<Value> {
    said["choices"][0]["token_ids"].as_array().unwrap().clone()
}

/// As many at once, of which every second streams, and whether all got their golden tokens; the others
/// got an error, behind some of them.
fn all_answered(address: SocketAddr, golden: &[Value]) -> bool {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |i: usize| {
            let case = &golden[i % golden.len()];
            (case, scope.spawn(move || ask(address, case, i % 2 == 1)))
        };
        let asked: Vec<_> = (0..REQUESTS as usize).map(ask).collect();
        asked.into_iter().map(|(case, answer)| (case, answer.join().unwrap())).collect()
    });
    let is_answer = |(case, (ids, error)): &(&Value, (Vec<Value>, Option<Value>))| {
        let expected = &case["greedy_fp32"].as_array().unwrap()[..TOKENS];
        match error {
            None => assert_eq!(ids[..], *expected),
            Some(error) => {
                assert_eq!(error["type"], "server_error", "{error}");
                assert!(expected.starts_with(ids), "{ids:?}");
            }
        }
        error.is_none()
    };
    answers.iter().filter(|answer| is_answer(answer)).count() == REQUESTS as usize
}

#[test]
fn requests_outlive_a_device_that_fails_and_others_come_after_one_that_stays_lost() {
    let (golden, faults, planned) = (golden(), DeviceFaults::default(), Planned::default());
    let mut engine = tiny_engine(faults.clone(), REQUESTS.into());
    let (strike, plan) = (faults.clone(), Arc::clone(&planned));
    engine.observe(Box::new(move |step| {
        if step.generation_requests == REQUESTS {
            plan.lock().unwrap().drain(..).for_each(|fault| strike.fail(fault));
        }
    }));
    let address = client::serve(engine);
    let is_over = || planned.lock().unwrap().is_empty() && faults.pending() == 0;
    for (point, kind) in [
        (FaultPoint::Replay, FaultKind::Refused),
        (FaultPoint::Replay, FaultKind::Asynchronous),
        (FaultPoint::Replay, FaultKind::Sticky),
        (FaultPoint::Wait, FaultKind::Sticky),
    ] {
        planned.lock().unwrap().push(DeviceFault { point, kind, after: 3, times: 1 });
        assert!(all_answered(address, &golden), "{point:?} {kind:?}");
        assert!(is_over(), "{point:?} {kind:?} did not happen");
    }
    // It can't be opened anew, for as often as anybody tries.
    let lost = DeviceFault { point: FaultPoint::Wait, kind: FaultKind::Sticky, after: 3, times: 1 };
    let stays =
        DeviceFault { point: FaultPoint::Reopen, kind: FaultKind::Refused, after: 0, times: 3 };
    planned.lock().unwrap().extend([lost, stays]);
    assert!(!all_answered(address, &golden));
    assert!(is_over());
    assert!(all_answered(address, &golden), "once it is back");
}

/// What the driver keeps for the life of a process ends it, so that whoever keeps servers starts another.
#[test]
fn a_server_ends_where_its_process_can_have_no_device_any_more() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let (address, end) = client::serve_to_its_end(tiny_engine(faults.clone(), REQUESTS.into()));
    assert!(all_answered(address, &golden));
    for point in [FaultPoint::Wait, FaultPoint::Reopen] {
        faults.fail(DeviceFault { point, kind: FaultKind::Sticky, after: 0, times: 1 });
    }
    let (ids, error) = ask(address, &golden[0], false);
    let message = error.unwrap()["message"].as_str().unwrap().to_owned();
    assert!(ids.is_empty() && message.contains("start the program again"), "{message}");
    assert_eq!(end.join().unwrap().unwrap(), Outcome::Died);
}
