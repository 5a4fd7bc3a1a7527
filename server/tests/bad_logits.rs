//! A model whose activations leave the range of f16, as clients see it.

use crate::client;
use crate::overflowing::overflowing_model;
use crate::tiny_engine::{engine_of, folder};
use piecewise_testing::DeviceFaults;
use serde_json::{Value, json};

#[test]
fn logits_that_are_nan_are_an_error_of_their_request_and_are_counted() {
    let model = overflowing_model(&folder());
    let address = client::serve(engine_of(model.path(), "f16", DeviceFaults::default(), 4));
    let ask = |more: Value| {
        let mut body = json!({"prompt": [326, 680, 596], "max_tokens": 6, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client::ask(address, "POST /v1/completions", &body.to_string())
    };
    let is_told = |error: &Value| {
        let message = error["message"].as_str().unwrap();
        let parts = ["NaN", "f16", "--dtype bf16"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(error["type"], "server_error");
    };
    let asked = [
        json!({}),
        json!({"temperature": 0.8, "seed": 3}),
        json!({"logprobs": 2, "presence_penalty": 1.0}),
        json!({"echo": true, "logprobs": 1, "max_tokens": 0}),
    ];
    for more in &asked {
        let answer = ask(more.clone());
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        is_told(&body["error"]);
    }
    let answer = ask(json!({"stream": true}));
    let mut events = answer.lines().filter_map(|line| line.strip_prefix("data: ")).rev();
    let first = events.next().unwrap();
    let error = if first == "[DONE]" { events.next().unwrap() } else { first };
    is_told(&serde_json::from_str::<Value>(error).unwrap()["error"]);
    let metrics = client::ask(address, "GET /metrics", "");
    let ended = asked.len() + 1;
    assert!(metrics.contains(&format!("\npiecewise_bad_logits_total {ended}\n")), "{metrics}");
    let failed = |line: &str| {
        line.contains("finished_reason=\"error\"") && line.ends_with(&format!(" {ended}"))
    };
    assert!(metrics.lines().any(failed), "{metrics}");
}
