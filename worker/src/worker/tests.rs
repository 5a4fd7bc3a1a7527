//! A worker of the tiny model on a device that fails, before a front end of this test's own.

use super::{Make, Model, Service, Worker, WorkerHandle, WorkerOptions};
use crate::wire::OutputError;
use crate::zmtp::{Address, Connection, Receiver, Role, Sender};
use piecewise_runtime::engine::Engine;
use piecewise_runtime::engine_thread::ThreadOptions;
use piecewise_server::chat::ReplyFormat;
use piecewise_server::structured::Structure;
use piecewise_testing::{DeviceFault, DeviceFaults, FaultKind, FaultPoint};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tiny_engine::{engine_of, folder, golden, tiny_engine};

#[path = "../../../tests/support/tiny_engine.rs"]
mod tiny_engine;

#[path = "../../../tests/support/overflowing.rs"]
mod overflowing;

const TOKENS: usize = 24;

/// A worker on a thread, and its front end.
struct Pair {
    requests: Sender,
    outputs: Receiver,
    handle: WorkerHandle,
    worker: JoinHandle<bool>,
    /// Where requests and outputs are taken.
    listeners: [TcpListener; 2],
}

fn address(listener: &TcpListener) -> String {
    format!("tcp://{}", listener.local_addr().unwrap())
}

fn accept(listener: &TcpListener, role: Role) -> (Receiver, Sender) {
    let (stream, _) = listener.accept().unwrap();
    Connection::new(stream, role, b"").unwrap().split()
}

/// The ways to a worker that joins, and from it.
fn joined(inputs: &TcpListener, outputs: &TcpListener) -> (Sender, Receiver) {
    let (outputs, _) = accept(outputs, Role::Pull);
    let (mut ready, requests) = accept(inputs, Role::Router);
    ready.receive(&mut |_| {}).unwrap().unwrap();
    outputs.set_patience(Duration::from_secs(600)).unwrap();
    (requests, outputs)
}

impl Pair {
    fn start(faults: DeviceFaults) -> Self {
        Self::of(tiny_engine(faults, 16))
    }

    fn of(engine: Engine) -> Self {
        Self::making(engine, Service::constraint)
    }

    fn making(engine: Engine, make: Make) -> Self {
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [handshake, inputs, outputs] = &listeners;
        let state = tempfile::tempdir().unwrap();
        let options = WorkerOptions {
            handshake: address(handshake).parse::<Address>().unwrap(),
            rank: 0,
            state_dir: state.path().to_owned(),
            stand_in: None,
            admin: true,
            thread: ThreadOptions::default(),
        };
        let model = Model {
            dtype: "float32".to_owned(),
            structures: None,
            reasoning: ReplyFormat::default(),
        };
        let worker = Worker::making(engine, model, options, make).unwrap();
        let handle = worker.handle();
        let worker = std::thread::spawn(move || {
            let _state = state;
            worker.run(&mut |_| {})
        });
        let (mut hello, mut answer) = accept(handshake, Role::Router);
        hello.receive(&mut |_| {}).unwrap().unwrap();
        let init = json!({
            "addresses": {
                "inputs": [address(inputs)], "outputs": [address(outputs)],
                "coordinator_input": null, "coordinator_output": null,
                "frontend_stats_publish_address": null,
            },
            "parallel_config": {},
        });
        answer.send(&[&rmp_serde::to_vec_named(&init).unwrap()]).unwrap();
        let (requests, outputs) = joined(inputs, outputs);
        let [_, inputs, outputs_at] = listeners;
        Self { requests, outputs, handle, worker, listeners: [inputs, outputs_at] }
    }

    /// The worker comes back after its connections were cut.
    fn join_again(&mut self) {
        let [inputs, outputs] = &self.listeners;
        (self.requests, self.outputs) = joined(inputs, outputs);
    }

    fn add(&mut self, request: &str, ids: &Value, tokens: usize) {
        self.add_with(request, ids, json!({"temperature": 0.0, "max_tokens": tokens}));
    }

    fn add_with(&mut self, request: &str, ids: &Value, sampling: Value) {
        let request = json!([request, ids, null, sampling, null, 1.0, null, null, null]);
        self.requests.send(&[&[0], &rmp_serde::to_vec(&request).unwrap()]).unwrap();
    }

    fn message(&mut self) -> Value {
        let message = self.outputs.receive(&mut |_| {}).unwrap().expect("an answer in time");
        rmp_serde::from_slice(&message[0]).unwrap()
    }

    /// The outputs of the next message.
    fn next(&mut self) -> Vec<Value> {
        self.message()[1].as_array().unwrap().clone()
    }

    /// The answer to a call: what failed, and the result.
    fn call(&mut self, method: &str, arguments: &Value) -> (Value, Value) {
        let call = json!([0, 7, method, arguments]);
        self.requests.send(&[&[3], &rmp_serde::to_vec(&call).unwrap()]).unwrap();
        loop {
            let message = self.message();
            if let Some(answer) = message.get(4).filter(|answer| answer[0] == json!(7)) {
                return (answer[1].clone(), answer.get(2).map_or(Value::Null, |it| it[1].clone()));
            }
        }
    }

    /// Asks what needs no engine: once the answer is here, what was sent before has been read.
    fn is_read(&mut self) {
        let call = json!([0, 1, "is_sleeping", []]);
        self.requests.send(&[&[3], &rmp_serde::to_vec(&call).unwrap()]).unwrap();
        while self.message().get(4).is_none_or(Value::is_null) {}
    }

    /// The ids of requests for the golden tokens, 32 at once, or `None` for one that got an error
    /// that says to try again.
    fn ask(&mut self, golden: &[Value]) -> Vec<Option<Vec<Value>>> {
        for number in 0..32 {
            self.add(&number.to_string(), &golden[number % golden.len()]["ids"], TOKENS);
        }
        let mut ids = BTreeMap::<usize, Vec<Value>>::new();
        let mut ends = BTreeMap::new();
        while ends.len() < 32 {
            for output in self.next() {
                let number = output[0].as_str().unwrap().parse().unwrap();
                ids.entry(number).or_default().extend_from_slice(output[1].as_array().unwrap());
                let is_end = output.get(5).is_some_and(|reason| !reason.is_null());
                if is_end {
                    assert!(ends.insert(number, output.clone()).is_none(), "two ends of {number}");
                }
            }
        }
        let outcome = |(number, end): (usize, Value)| match end[5].as_u64() {
            Some(3) => {
                assert_eq!(end[18]["retryable"], json!(true), "{end}");
                None
            }
            reason => {
                assert_eq!(reason, Some(1), "{end}");
                ids.remove(&number)
            }
        };
        ends.into_iter().map(outcome).collect()
    }
}

#[test]
fn an_abort_frees_pages_before_the_next_step_and_is_counted() {
    let mut pair = Pair::start(DeviceFaults::default());
    pair.add("gone", &golden()[0]["ids"], 900);
    while pair.next().is_empty() {}
    let engine = pair.handle.service.engine.clone();
    let now = |engine: &mut Engine| {
        (engine.model().statistics().steps, engine.load().kv_pages - engine.load().free_kv_pages)
    };
    // No step is made until the abort has been read.
    let (release, held) = mpsc::channel::<()>();
    let before = engine.call(move |engine| {
        let _ = held.recv();
        now(engine)
    });
    pair.requests.send(&[&[1], &rmp_serde::to_vec(&["nobody", "gone"]).unwrap()]).unwrap();
    pair.is_read();
    let after = engine.call(now);
    drop(release);
    let (steps, pages) = before.recv().unwrap();
    assert!(pages > 0, "it has pages");
    assert_eq!(after.recv().unwrap(), (steps, 0), "no step, and no page");
    let text = engine.metrics().text().unwrap();
    assert!(text.contains("finished_reason=\"abort\",model_name=\"model\"} 1"), "{text}");
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}

/// Whichever of the two is cut, the worker comes back by itself, and nobody waits in vain.
#[test]
fn requests_of_a_cut_connection_are_ended_once_it_is_back() {
    let (golden, mut pair) = (golden(), Pair::start(DeviceFaults::default()));
    for cut in ["outputs", "requests"] {
        let names = [0, 1, 2].map(|number| format!("{cut} {number}"));
        names.iter().for_each(|name| pair.add(name, &golden[0]["ids"], 900));
        while pair.next().is_empty() {}
        match cut {
            "outputs" => pair.outputs.stream.shutdown(Shutdown::Both).unwrap(),
            _ => pair.requests.close(),
        }
        pair.join_again();
        let mut ended = BTreeMap::new();
        while ended.len() < names.len() {
            for output in pair.next() {
                assert_eq!((&output[5], &output[18]["retryable"]), (&json!(3), &json!(true)));
                ended.insert(output[0].as_str().unwrap().to_owned(), output);
            }
        }
        assert!(ended.keys().eq(&names), "{ended:?}");
        let expected =
            |i: usize| Some(&golden[i % golden.len()]["greedy_fp32"].as_array().unwrap()[..TOKENS]);
        let answers = pair.ask(&golden);
        assert!((0..32).all(|i| answers[i].as_deref() == expected(i)), "after {cut} were cut");
    }
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}

/// By vLLM's utility calls, as its front end makes them.
#[test]
fn a_front_end_puts_a_worker_to_sleep_and_wakes_it() {
    let (golden, mut pair) = (golden(), Pair::start(DeviceFaults::default()));
    for (level, mode) in [(1, "abort"), (2, "wait"), (2, "keep")] {
        assert_eq!(pair.call("sleep", &json!([level, mode])), (Value::Null, Value::Null));
        assert_eq!(pair.call("is_sleeping", &json!([])), (Value::Null, json!(true)));
        pair.add("early", &golden[0]["ids"], TOKENS);
        let output = loop {
            if let Some(output) = pair.next().pop() {
                break output;
            }
        };
        assert_eq!((&output[5], &output[18]["retryable"]), (&json!(3), &json!(true)), "{output}");
        assert!(output[18].to_string().contains("/wake_up"), "{output}");
        assert_eq!(pair.call("wake_up", &json!([null])), (Value::Null, json!(true)));
        assert_eq!(pair.call("is_sleeping", &json!([])), (Value::Null, json!(false)));
        let expected =
            |i: usize| &golden[i % golden.len()]["greedy_fp32"].as_array().unwrap()[..TOKENS];
        let answers = pair.ask(&golden);
        assert!((0..32).all(|i| answers[i].as_deref() == Some(expected(i))), "after {level}");
    }
    for (method, arguments, why) in [
        ("sleep", json!([0, "keep"]), "`level`"),
        ("sleep", json!([1, "softly"]), "`mode`"),
        ("wake_up", json!([["weights"]]), "`tags`"),
    ] {
        let (failure, _) = pair.call(method, &arguments);
        assert!(failure.as_str().unwrap().starts_with(why), "{method}: {failure}");
    }
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}

#[test]
fn every_request_is_answered_though_the_device_fails() {
    let (golden, faults) = (golden(), DeviceFaults::default());
    let mut pair = Pair::start(faults.clone());
    let is_golden = |(number, ids): (usize, &Option<Vec<Value>>)| {
        let expected = &golden[number % golden.len()]["greedy_fp32"].as_array().unwrap()[..TOKENS];
        ids.as_ref().is_some_and(|ids| ids == expected)
    };
    for (point, kind) in
        [(FaultPoint::Replay, FaultKind::Refused), (FaultPoint::Wait, FaultKind::Sticky)]
    {
        faults.fail(DeviceFault { point, kind, after: 12, times: 1 });
        let answers = pair.ask(&golden);
        assert_eq!(faults.pending(), 0, "{point:?} {kind:?} did not happen");
        assert!(answers.iter().enumerate().all(is_golden), "{point:?} {kind:?}: {answers:?}");
    }
    // It can't be opened anew, for as often as anybody tries: an error, and none that hangs.
    faults.fail(DeviceFault {
        point: FaultPoint::Wait,
        kind: FaultKind::Sticky,
        after: 12,
        times: 1,
    });
    let (point, kind) = (FaultPoint::Reopen, FaultKind::Refused);
    faults.fail(DeviceFault { point, kind, after: 0, times: 3 });
    let answers = pair.ask(&golden);
    assert!(answers.iter().any(Option::is_none));
    assert!(answers.iter().enumerate().all(|of| of.1.is_none() || is_golden(of)), "{answers:?}");
    let answers = pair.ask(&golden);
    assert!(answers.iter().enumerate().all(is_golden), "once it is back: {answers:?}");
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}

/// Whoever asks again gets the same, so that the front end is not told to.
#[test]
fn a_request_whose_logits_are_nan_finishes_with_an_error() {
    let model = overflowing::overflowing_model(&folder());
    let mut pair = Pair::of(engine_of(model.path(), "f16", DeviceFaults::default(), 4));
    pair.add("a", &golden()[0]["ids"], TOKENS);
    let ended = |output: &Value| output.get(5).is_some_and(|reason| !reason.is_null());
    let end = loop {
        if let Some(end) = pair.next().into_iter().find(ended) {
            break end;
        }
    };
    assert_eq!((&end[0], &end[5]), (&json!("a"), &json!(3)), "{end}");
    assert_eq!(end[18]["retryable"], json!(false), "{end}");
    let message = end[18]["message"].as_str().unwrap();
    assert!(message.contains("NaN") && message.contains("--dtype bf16"), "{message}");
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}

/// The thread that makes structures refuses what it held, and reads on; a drain waits for nothing that
/// never comes.
#[test]
fn a_panic_of_what_reads_structures_ends_its_own_request_alone() {
    let make: Make = |_, asked, _| match &asked.structure {
        Some(Structure::Regex(regex)) if regex == "planted" => panic!("planted"),
        _ => Ok(None),
    };
    let golden = golden();
    let mut pair = Pair::making(tiny_engine(DeviceFaults::default(), 16), make);
    for (name, regex) in [("a", "planted"), ("b", "planted"), ("c", "else")] {
        let structure = json!({"regex": regex});
        let sampling = json!({
            "temperature": 0.0, "max_tokens": TOKENS, "structured_outputs": structure,
        });
        pair.add_with(name, &golden[0]["ids"], sampling);
    }
    let (mut ends, mut ids) = (BTreeMap::new(), Vec::new());
    while ends.len() < 3 {
        for output in pair.next() {
            let name = output[0].as_str().unwrap().to_owned();
            if name == "c" {
                ids.extend_from_slice(output[1].as_array().unwrap());
            }
            if output.get(5).is_some_and(|reason| !reason.is_null()) {
                ends.insert(name, output);
            }
        }
    }
    for name in ["a", "b"] {
        assert_eq!(ends[name][5], 3, "{ends:?}");
        assert!(ends[name][18]["message"].to_string().contains("panicked"), "{ends:?}");
    }
    assert_eq!(ids, golden[0]["greedy_fp32"].as_array().unwrap()[..TOKENS]);
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}

/// A structure that takes long is nobody's any more once its request is aborted, and keeps no other waiting.
#[test]
fn a_structure_is_given_up_with_its_request() {
    let make: Make = |service, asked, wanted| match &asked.structure {
        Some(Structure::Regex(regex)) if regex == "endless" => {
            // The front end hears that it has begun.
            let error = OutputError { message: "begun".to_owned(), retryable: false };
            service.outbox.refuse(&"begun".into(), error);
            let begun = Instant::now();
            while wanted() {
                // For a test that fails; one that does not is over at once.
                assert!(begun.elapsed() < Duration::from_secs(600), "nobody gave it up");
                std::thread::yield_now();
            }
            Err("given up".to_owned())
        }
        _ => Ok(None),
    };
    let golden = golden();
    let mut pair = Pair::making(tiny_engine(DeviceFaults::default(), 16), make);
    let structured = |regex: &str| {
        let structure = json!({"regex": regex});
        json!({"temperature": 0.0, "max_tokens": TOKENS, "structured_outputs": structure})
    };
    pair.add_with("gone", &golden[0]["ids"], structured("endless"));
    pair.add_with("next", &golden[0]["ids"], structured("a+"));
    while !pair.next().iter().any(|output| output[0] == "begun") {}
    pair.requests.send(&[&[1], &rmp_serde::to_vec(&["gone"]).unwrap()]).unwrap();
    let (mut ids, mut is_over) = (Vec::new(), false);
    while !is_over {
        for output in pair.next() {
            assert!(!output.to_string().contains("panicked"), "{output}");
            if output[0] == "next" {
                ids.extend_from_slice(output[1].as_array().unwrap());
                is_over = output.get(5).is_some_and(|reason| !reason.is_null());
            }
        }
    }
    assert_eq!(ids, golden[0]["greedy_fp32"].as_array().unwrap()[..TOKENS]);
    pair.handle.drain();
    assert!(pair.worker.join().unwrap());
}
