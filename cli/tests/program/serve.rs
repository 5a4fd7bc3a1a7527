//! The server as a program: it answers, and drains when it is told to end. More is held by the programs
//! in tests/server.

use crate::bounded::{Bound, Bounded};
use crate::support::cli::{command, device_flags, error_of, norm_error, root, stdout_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

fn post(address: &str, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// A server of the tiny model that answers.
pub(crate) struct Started {
    pub(crate) server: Bounded,
    pub(crate) address: String,
    _cache: tempfile::TempDir,
}

pub(crate) fn started(extra: &[&str], device: &[String]) -> Started {
    let cache = tempfile::tempdir().unwrap();
    let mut command = command(cache.path());
    command.args(["serve", "--model", "examples/tiny-qwen3", "--port", "0", "--no-access-log"]);
    let mut server = command.args(extra).args(device).stdout(Stdio::piped()).bounded().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let listening = lines.next().unwrap().unwrap();
    let address = listening.strip_prefix("listening at http://").unwrap().to_owned();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    Started { server, address, _cache: cache }
}

impl Started {
    /// Has it end, and holds that it does so well.
    pub(crate) fn end(mut self) {
        let pid = Pid::from_raw(self.server.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.server.wait().success());
    }
}

#[test]
fn a_server_answers_and_ends_when_it_is_told_to() {
    let cache = tempfile::tempdir().unwrap();
    let log = cache.path().join("steps.jsonl");
    let trace = cache.path().join("steps.pftrace");
    let sizes = ["--dtype", "f32", "--max-num-tokens", "64", "--capture-num-tokens", "1,64"];
    let server = command(cache.path())
        .args(["serve", "--model", "examples/tiny-qwen3", "--port", "0", "--no-access-log"])
        .args(sizes)
        .args(device_flags())
        .arg("--iteration-log")
        .arg(&log)
        .arg("--trace")
        .arg(&trace)
        .stdout(Stdio::piped())
        .bounded();
    let mut server = server.unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let listening = lines.next().unwrap().unwrap();
    let address = listening.strip_prefix("listening at http://").unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    let golden = std::fs::read(root().join("examples/tiny-qwen3/golden.json")).unwrap();
    let golden: Vec<Value> = serde_json::from_slice(&golden).unwrap();
    let prompts: Vec<&Value> = golden.iter().map(|case| &case["prompt"]).collect();
    let body = json!({
        "prompt": prompts, "max_tokens": 64, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    });
    let answer = post(&address, "/v1/completions", &body);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), golden.len());
    for (choice, case) in choices.iter().zip(&golden) {
        assert_eq!(choice["token_ids"], case["greedy_fp32"], "{}", case["prompt"]);
    }
    let refused = post(&address, "/v1/completions", &json!({"prompt": "x", "colour": 1}));
    assert_eq!(refused["error"]["param"], "colour");

    let pid = Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.wait().success());
    let steps = std::fs::read_to_string(&log).unwrap();
    let mut steps = steps.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let head = steps.next().unwrap()["log"].take();
    assert_eq!((&head["max_num_tokens"], &head["model"]), (&json!(64), &json!("tiny-qwen3")));
    let prompts: usize = golden.iter().map(|case| case["ids"].as_array().unwrap().len()).sum();
    let (mut count, mut read, mut rows) = (0, 0, 0);
    for step in steps {
        count += 1;
        read += step["context_tokens"].as_u64().unwrap();
        rows += step["rows"].as_u64().unwrap();
        assert!(step["wall_us"].as_f64() > Some(0.0), "{step}");
    }
    assert_eq!((read, rows), (prompts as u64, 64 * golden.len() as u64));
    let trace = std::fs::read(&trace).unwrap();
    let submits = trace.windows(7).filter(|bytes| bytes == b"submit ").count();
    assert_eq!(submits, count, "each step is in the trace once");
    let log = log.to_str().unwrap();
    let plan: Value = serde_json::from_str(&stdout_of(&["plan", "--log", log, "--json"])).unwrap();
    assert!(plan["decode_batch_sizes"].as_array().is_some_and(|sizes| !sizes.is_empty()));
}

/// An encoder's folder is known by itself.
#[test]
fn an_encoder_is_served_as_what_it_is() {
    let cache = tempfile::tempdir().unwrap();
    let bert = "tests/fixtures/encoders/bert";
    let server = command(cache.path())
        .args(["serve", "--model", bert, "--port", "0", "--no-access-log", "--dtype", "f32"])
        .args(["--host", "localhost"])
        .stdout(Stdio::piped())
        .bounded();
    let mut server = server.unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let listening = lines.next().unwrap().unwrap();
    let address = listening.strip_prefix("listening at http://").unwrap().to_owned();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    let bytes = std::fs::read(root().join(bert).join("golden.safetensors")).unwrap();
    let golden = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: String| {
        let data = golden.tensor(&name).unwrap().data();
        Vec::from_iter(data.as_chunks().0.iter().copied())
    };
    // Those whose token types are all 0.
    let plain = [0, 3];
    let ids = plain.map(|i| words(format!("ids_{i}")).into_iter().map(u32::from_le_bytes));
    let body = json!({"input": ids.map(Vec::from_iter), "model": "bert"});
    let answer = post(&address, "/v1/embeddings", &body);
    for (i, datum) in plain.into_iter().zip(answer["data"].as_array().unwrap()) {
        let found: Vec<f32> = serde_json::from_value(datum["embedding"].clone()).unwrap();
        let expected = words(format!("embedding_{i}")).into_iter().map(f32::from_le_bytes);
        assert!(norm_error(&found, &Vec::from_iter(expected)) < 2e-5);
    }
    for (path, body, field) in [
        ("/v1/embeddings", json!({"input": "text"}), "input"),
        ("/v1/embeddings", json!({"input": [[1], [999]]}), "input[1]"),
        ("/rerank", json!({"query": "a", "documents": []}), "documents"),
        ("/v1/completions", json!({"prompt": [1]}), "model"),
    ] {
        let refused = post(&address, path, &body);
        assert_eq!(refused["error"]["param"], field, "{refused}");
    }

    let pid = Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.wait().success());
}

#[test]
fn what_an_encoder_s_server_can_t_have_is_named() {
    let bert = ["serve", "--model", "tests/fixtures/encoders/bert", "--port", "0"];
    for flags in [
        &["--chat-template", "Cargo.toml"][..],
        &["--kv-events-endpoint", "tcp://127.0.0.1:0"],
        &["--generation-config", "none"],
        &["--max-seq-len", "64"],
        &["--no-prefix-cache"],
        &["--sampling-controls"],
    ] {
        let error = error_of(&[&bert[..], flags].concat());
        let expected = format!("{} is for models that write text", flags[0]);
        assert!(error.contains(&expected), "{error}");
    }
    let dump = stdout_of(&[&bert[..], &["--dump-dir", "d", "--print-config"]].concat());
    assert!(dump.contains("dump.dir = \"d\"  # --dump-dir"), "{dump}");
    let error = error_of(&[&bert[..], &["--stop-after", "split"]].concat());
    assert!(error.contains("--stop-after shows nothing") && error.contains("`inspect"), "{error}");
    let embed = ["embed", "--model", bert[2], "--text", "a", "--sampling-controls"];
    let error = error_of(&embed);
    assert!(error.contains("--sampling-controls is for models that write text"), "{error}");
    let encode = ["encode", "--model", bert[2], "--inputs", "Cargo.toml", "--out", "o.safetensors"];
    let error = error_of(&[&encode[..], &["--max-seq-len", "9"]].concat());
    assert!(error.contains("--max-seq-len is for models that write text"), "{error}");
    let tiny = ["serve", "--model", "examples/tiny-qwen3", "--port", "0"];
    let log = "/dev/null/items.jsonl";
    for flags in [&["--matryoshka"][..], &["--item-log", log], &["--capture-item-log", log]] {
        let error = error_of(&[&tiny[..], flags].concat());
        assert!(error.contains(&format!("{} is for encoders", flags[0])), "{error}");
    }
    let error = error_of(&[&bert[..], &["--host", "no such host"]].concat());
    assert!(error.contains("--host no such host is neither an address nor a name"), "{error}");
    let worker = ["worker", "--handshake", "tcp://127.0.0.1:1", "--rank", "0", "--model"];
    let worker = [&worker[..], &["examples/tiny-qwen3", "--metrics-address", "nowhere"]].concat();
    let error = error_of(&worker);
    assert!(
        error.contains("--metrics-address nowhere is neither an address nor a name"),
        "{error}"
    );
    let error = error_of(&[&bert[..], &["--item-log", log]].concat());
    assert!(error.contains("can't write /dev/null/items.jsonl"), "{error}");
    let error = error_of(&["serve", "--model", "tests/fixtures/encoders/siglip", "--port", "0"]);
    assert!(error.contains("reads images") && error.contains("`encode`"), "{error}");
    let labels = "tests/fixtures/encoders/xlm_roberta_scores";
    let error = error_of(&["serve", "--model", labels, "--port", "0"]);
    assert!(error.contains("gives 3 scores; what ranks gives 1"), "{error}");
}
