//! A device that fails while 32 requests run, as clients see it.

use crate::client;
use crate::tiny_engine::{golden, tiny_engine};
use piecewise_backend::cpu::{CpuFault, CpuFaults, FaultKind, FaultPoint};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The status of a request for the golden tokens of a prompt, and what came.
fn ask(address: SocketAddr, case: &Value) -> (u16, Value) {
    let body = json!({
        "prompt": case["ids"], "max_tokens": 24, "temperature": 0, "return_token_ids": true,
    });
    let answer = client::ask(address, "POST /v1/completions", &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

/// 32 at once, and whether all got their golden tokens; the others got an error.
fn all_answered(address: SocketAddr, golden: &[Value]) -> bool {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |i: usize| {
            let case = &golden[i % golden.len()];
            (case, scope.spawn(move || ask(address, case)))
        };
        let asked: Vec<_> = (0..32).map(ask).collect();
        asked.into_iter().map(|(case, answer)| (case, answer.join().unwrap())).collect()
    });
    let is_answer = |(case, (status, answer)): &(&Value, (u16, Value))| {
        if *status == 500 {
            assert_eq!(answer["error"]["type"], "server_error", "{answer}");
            return false;
        }
        let expected = &case["greedy_fp32"].as_array().unwrap()[..24];
        assert_eq!((*status, &answer["choices"][0]["token_ids"]), (200, &json!(expected)));
        true
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
