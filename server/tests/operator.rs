//! What an operator does with a server that runs: sleep, wake, and its graphs.

use crate::client::{self, PATIENCE, ask, bind_as};
use crate::tiny_engine::{golden, tiny_engine};
use piecewise_server::{ApiKeys, ServedModel};
use piecewise_testing::{DeviceFault, DeviceFaults, FaultKind, FaultPoint};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread::JoinHandle;

/// Status and body.
fn order(address: SocketAddr, request: &str, body: &Value) -> (u16, Value) {
    let answer = ask(address, request, &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(json!(body.trim())))
}

fn ok(address: SocketAddr, request: &str) -> Value {
    let (status, body) = order(address, request, &Value::Null);
    assert_eq!(status, 200, "{request}: {body}");
    body
}

fn generate(address: SocketAddr, case: &Value, tokens: usize) -> (u16, Value) {
    let body = json!({
        "prompt": case["ids"], "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    });
    order(address, "POST /v1/completions", &body)
}

fn assert_golden(answer: &(u16, Value), case: &Value, tokens: usize) {
    let ids = answer.1["choices"][0]["token_ids"].as_array();
    let ids = ids.unwrap_or_else(|| panic!("{answer:?}"));
    let expected = case["greedy_fp32"].as_array().unwrap();
    let known = tokens.min(expected.len());
    assert_eq!((ids.len(), &ids[..known]), (tokens, &expected[..known]));
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = ask(address, "GET /metrics", "");
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Has the engine told to sleep in the middle of an answer of hundreds of steps: the engine is held there
/// until the order has reached it. That answer, and the one to the order.
fn told_to_sleep_during(
    address: SocketAddr,
    (faults, case): (&DeviceFaults, &Value),
    request: String,
) -> (JoinHandle<(u16, Value)>, Value) {
    let before = metric(address, "vllm:generation_tokens_total");
    let (is_held, release) = faults.hold(FaultPoint::Replay, 40);
    let case = case.clone();
    let answer = std::thread::spawn(move || generate(address, &case, LONG));
    is_held.recv_timeout(PATIENCE).expect("a step that is held");
    assert!(metric(address, "vllm:generation_tokens_total") > before, "it has not begun");
    let asleep = std::thread::spawn(move || ok(address, &request));
    // The server's one thread has told the engine by the time that it answers so.
    while order(address, "GET /ready", &Value::Null).0 == 200 {
        assert!(!asleep.is_finished(), "the engine is held and can't have answered");
    }
    drop(release);
    (answer, asleep.join().unwrap())
}

const LONG: usize = 900;

#[test]
fn a_server_sleeps_and_wakes_and_loses_nothing() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let address = client::serve(tiny_engine(faults.clone(), 4));
    for level in [1, 2] {
        let request = format!("POST /sleep?level={level}");
        let (answer, asleep) = told_to_sleep_during(address, (&faults, &golden[0]), request);
        assert_eq!(asleep, json!({"is_sleeping": true}));
        assert!(!answer.is_finished(), "it was to be kept");
        let (status, error) = generate(address, &golden[1], 4);
        assert_eq!((status, &error["error"]["code"]), (503, &json!("asleep")), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("/wake_up"), "{error}");
        let (status, ready) = order(address, "GET /ready", &Value::Null);
        assert!(status == 503 && ready.as_str().unwrap().contains("/wake_up"), "{ready}");
        assert_eq!(ok(address, "GET /health"), "alive");
        assert_eq!(ok(address, "GET /is_sleeping"), json!({"is_sleeping": true}));
        let (status, error) = order(address, "POST /graphs?mode=none", &Value::Null);
        assert_eq!((status, &error["error"]["code"]), (503, &json!("asleep")), "{error}");
        assert_eq!(ok(address, "POST /wake_up"), json!({"is_sleeping": false}));
        assert_eq!(ok(address, "GET /ready"), "ready");
        assert_golden(&generate(address, &golden[1], 4), &golden[1], 4);
        assert_golden(&answer.join().unwrap(), &golden[0], LONG);
    }
}

#[test]
fn running_requests_are_waited_for_or_end_as_an_operator_says() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let address = client::serve(tiny_engine(faults.clone(), 4));
    let sleep = |mode: &str| {
        let request = format!("POST /sleep?mode={mode}");
        told_to_sleep_during(address, (&faults, &golden[0]), request).0
    };
    let answer = sleep("wait");
    assert_golden(&answer.join().unwrap(), &golden[0], LONG);
    ok(address, "POST /wake_up");
    let answer = sleep("abort");
    let (status, error) = answer.join().unwrap();
    assert_eq!((status, &error["error"]["code"]), (503, &json!("asleep")), "{error}");
    ok(address, "POST /wake_up");
    assert_golden(&generate(address, &golden[1], 24), &golden[1], 24);
    let (status, error) = order(address, "POST /sleep?level=3", &Value::Null);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("level")), "{error}");
}

#[test]
fn the_graphs_of_a_server_are_shown_enabled_and_run_in_another_mode() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let address = client::serve(tiny_engine(faults.clone(), 4));
    let started = ok(address, "GET /graphs");
    assert_eq!(started["mode"], "full_and_piecewise", "{started}");
    let listed = started["graphs"].as_array().unwrap();
    assert_eq!(started["ready"], listed.len(), "{started}");
    for mode in ["none", "full_decode_only"] {
        let changed = ok(address, &format!("POST /graphs?mode={mode}"));
        assert_eq!(changed["mode"], mode, "{changed}");
        assert_eq!(changed["graphs"].as_array().unwrap().is_empty(), mode == "none", "{changed}");
        assert_golden(&generate(address, &golden[0], 24), &golden[0], 24);
    }
    // Refused so often in a row, the graph of one sequence is not tried any more.
    let (point, kind) = (FaultPoint::Replay, FaultKind::Refused);
    faults.fail(DeviceFault { point, kind, after: 0, times: 3 });
    assert_golden(&generate(address, &golden[0], 24), &golden[0], 24);
    let failed = ok(address, "GET /graphs");
    assert_eq!((&failed["disabled"], &failed["failures"]), (&json!(1), &json!(3)), "{failed}");
    let enabled = ok(address, "POST /graphs?enable=true");
    assert_eq!(enabled["disabled"], 0, "{enabled}");
    let launches = |graphs: &Value| graphs["launches"].as_u64().unwrap();
    assert_golden(&generate(address, &golden[0], 24), &golden[0], 24);
    assert!(launches(&ok(address, "GET /graphs")) >= launches(&enabled) + 20, "it replays again");
    // The one that is disabled is among those that are captured again.
    faults.fail(DeviceFault { point, kind, after: 0, times: 3 });
    assert_golden(&generate(address, &golden[0], 24), &golden[0], 24);
    let failed = ok(address, "GET /graphs");
    assert_eq!(failed["disabled"], 1, "{failed}");
    let again = ok(address, "POST /graphs?recapture=true");
    let listed = again["graphs"].as_array().unwrap();
    assert_eq!((&again["ready"], &again["disabled"]), (&json!(listed.len()), &json!(0)), "{again}");
    for (before, after) in failed["graphs"].as_array().unwrap().iter().zip(listed) {
        let recaptures = |graph: &Value| graph["recaptures"].as_u64().unwrap();
        assert_eq!(recaptures(after), recaptures(before) + 1, "{after}");
    }
    assert_golden(&generate(address, &golden[0], 24), &golden[0], 24);
    assert!(launches(&ok(address, "GET /graphs")) >= launches(&again) + 20, "it replays them");
    for (query, name) in [("mode=fast", "mode"), ("recapture=now", "recapture")] {
        let (status, error) = order(address, &format!("POST /graphs?{query}"), &Value::Null);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(name)), "{error}");
        assert_eq!(ok(address, "GET /graphs")["captures"], again["captures"]);
    }
}

#[test]
fn an_operators_paths_are_there_where_asked_for_and_for_who_has_a_key() {
    for (admin, keys, status) in
        [(false, None, 404), (true, None, 503), (true, Some("key"), 401), (false, Some("key"), 404)]
    {
        let server = bind_as(|options| {
            (options.admin, options.keys) = (
                admin,
                keys.map_or_else(ApiKeys::default, |keys| ApiKeys::of_lines(keys).unwrap()),
            );
        });
        let page = ask(server.address(), "GET /openapi.json", "");
        assert_eq!(page.contains("\"/is_sleeping\""), admin);
        for request in ["POST /sleep", "POST /wake_up", "GET /is_sleeping", "GET /graphs"] {
            let found = order(server.address(), request, &Value::Null);
            assert_eq!(found.0, status, "{request}: {found:?}");
        }
    }
}

/// The trace of an answer's first steps, or of as many as there were: bytes that Perfetto reads.
#[test]
fn steps_are_profiled_by_operators_alone() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let keys = "[team]\nkey = 'of the team'\n[operator]\nkey = 'of operators'\nadmin = true\n";
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), keys).unwrap();
    let keys = ApiKeys::read(file.path()).unwrap();
    let server = bind_as(|options| options.keys = keys);
    let address = client::serve_at(server, tiny_engine(faults, 4), ServedModel::default()).0;
    let asked = |key: &str, request: &str, body: &str| -> (u16, Vec<u8>) {
        let headers = format!("Host: localhost\r\nAuthorization: Bearer {key}\r\n");
        let answer = client::ask_bytes(address, request, &headers, body);
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
        (status, answer[end..].to_vec())
    };
    let order = |request: &str| asked("of operators", request, "");
    let generate = |tokens: usize| {
        let body = json!({"prompt": golden[0]["ids"], "max_tokens": tokens, "ignore_eos": true});
        assert_eq!(asked("of the team", "POST /v1/completions", &body.to_string()).0, 200);
    };
    let submits = |trace: &[u8]| trace.windows(7).filter(|bytes| bytes == b"submit ").count();
    for path in ["/start_profile", "/stop_profile", "/sleep", "/wake_up"] {
        let (status, error) = asked("of the team", &format!("POST {path}"), "");
        let error = String::from_utf8(error).unwrap();
        assert!(status == 403 && error.contains("not_an_operator"), "{path}: {status} {error}");
    }
    assert_eq!(order("POST /stop_profile").0, 409, "none was started");
    assert_eq!(order("POST /start_profile?num_steps=3").0, 200);
    assert_eq!(order("POST /start_profile").0, 409, "there is one");
    generate(8);
    let (status, trace) = order("POST /stop_profile");
    assert_eq!((status, submits(&trace)), (200, 3));
    assert_eq!(order("POST /start_profile?num_steps=1000").0, 200);
    generate(5);
    let (status, trace) = order("POST /stop_profile");
    assert_eq!((status, submits(&trace)), (200, 5));
}

/// Under vLLM's names: what a request waited, read and wrote, what it asked for, and what steps took.
#[test]
fn dashboards_find_what_became_of_requests() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let address = client::serve(tiny_engine(faults, 4));
    let prompt = golden[0]["ids"].as_array().unwrap().len();
    let body = json!({
        "prompt": golden[0]["ids"], "max_tokens": 6, "temperature": 0, "ignore_eos": true, "n": 2,
    });
    assert_eq!(order(address, "POST /v1/completions", &body).0, 200);
    assert_eq!(generate(address, &golden[0], 1).0, 200);
    let text = ask(address, "GET /metrics", "");
    let value = |name: &str| -> f64 {
        let named =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let lines = Vec::from_iter(text.lines().filter(named));
        assert!(!lines.is_empty(), "{name}: {text}");
        lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    for (name, count, sum) in [
        ("request_prompt_tokens", 3, Some(3 * prompt)),
        ("request_generation_tokens", 3, Some(13)),
        ("request_params_max_tokens", 3, Some(13)),
        ("request_params_n", 2, Some(3)),
        ("request_queue_time_seconds", 3, None),
        ("request_prefill_time_seconds", 3, None),
        ("request_decode_time_seconds", 3, None),
        ("request_inference_time_seconds", 3, None),
        ("request_time_per_output_token_seconds", 3, None),
    ] {
        assert_eq!(value(&format!("vllm:{name}_count")), f64::from(count), "{name}");
        let found = value(&format!("vllm:{name}_sum"));
        assert!(sum.is_none_or(|sum| found == sum as f64), "{name}: {found}");
    }
    let sum = |name: &str| value(&format!("vllm:{name}_sum"));
    let parts = sum("request_prefill_time_seconds") + sum("request_decode_time_seconds");
    let whole = sum("request_inference_time_seconds");
    assert!((parts - whole).abs() < 1e-6, "{parts} of {whole}");
    assert!(whole + sum("request_queue_time_seconds") <= sum("e2e_request_latency_seconds") + 1e-6);
    assert_eq!(value("vllm:iteration_tokens_total_count"), value("piecewise_steps_total"));
    assert_eq!(value("vllm:iteration_tokens_total_sum"), value("piecewise_tokens_total"));
    assert!(text.contains("\npiecewise_build_info{sources="), "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    }
}
