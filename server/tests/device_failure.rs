//! A device that fails while 32 requests run, as clients see it.

use crate::client;
use crate::tiny_engine::{golden, tiny_engine};
use piecewise_backend::cpu::{CpuFault, CpuFaults, FaultKind, FaultPoint};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The tokens of a prompt, or the error; streamed or not.
fn ask(address: SocketAddr, case: &Value, stream: bool) -> Result<Vec<Value>, Value> {
    let body = json!({
        "prompt": case["ids"], "max_tokens": 24, "temperature": 0, "return_token_ids": true,
        "stream": stream,
    });
    let answer = client::ask(address, "POST /v1/completions", &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = &head[9..12];
    if !stream || status != "200" {
        let said: Value = serde_json::from_str(body).unwrap();
        return match status {
            "200" => Ok(ids_of(&said)),
            "500" => Err(said["error"].clone()),
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
            return Err(error.clone());
        }
        ids.extend(ids_of(&event));
    }
    Ok(ids)
}

fn ids_of(said: &Value) -> Vec<Value> {
    said["choices"][0]["token_ids"].as_array().unwrap().clone()
}

/// 32 at once, of which every second streams, and whether all got their golden tokens; the others got
/// an error.
fn all_answered(address: SocketAddr, golden: &[Value]) -> bool {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |i: usize| {
            let case = &golden[i % golden.len()];
            (case, scope.spawn(move || ask(address, case, i % 2 == 1)))
        };
        let asked: Vec<_> = (0..32).map(ask).collect();
        asked.into_iter().map(|(case, answer)| (case, answer.join().unwrap())).collect()
    });
    let is_answer = |(case, answer): &(&Value, Result<Vec<Value>, Value>)| match answer {
        Ok(ids) => {
            assert_eq!(ids[..], case["greedy_fp32"].as_array().unwrap()[..24]);
            true
        }
        Err(error) => {
            assert_eq!(error["type"], "server_error", "{error}");
            false
        }
    };
    answers.iter().filter(|answer| is_answer(answer)).count() == 32
}

#[test]
fn requests_outlive_a_device_that_fails_and_others_come_after_one_that_stays_lost() {
    let (golden, faults) = (golden(), CpuFaults::default());
    let address = client::serve(tiny_engine(faults.clone(), 32));
    for (point, kind) in [
        (FaultPoint::Replay, FaultKind::Refused),
        (FaultPoint::Replay, FaultKind::Asynchronous),
        (FaultPoint::Replay, FaultKind::Sticky),
        (FaultPoint::Wait, FaultKind::Sticky),
    ] {
        faults.fail(CpuFault { point, kind, after: 12, times: 1 });
        assert!(all_answered(address, &golden), "{point:?} {kind:?}");
        assert_eq!(faults.pending(), 0, "{point:?} {kind:?} did not happen");
    }
    // It can't be opened anew, for as often as anybody tries.
    faults.fail(CpuFault { point: FaultPoint::Wait, kind: FaultKind::Sticky, after: 12, times: 1 });
    let stays =
        CpuFault { point: FaultPoint::Reopen, kind: FaultKind::Refused, after: 0, times: 3 };
    faults.fail(stays);
    assert!(!all_answered(address, &golden));
    assert!(all_answered(address, &golden), "once it is back");
}
