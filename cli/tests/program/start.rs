//! What a server says of itself at its start, and how its log is written.

use crate::bounded::{Bound, Bounded};
use crate::support::cli::{command, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{ChildStdout, Stdio};

const MODEL: &str = "examples/tiny-qwen3";
const FLAGS: [&str; 11] = [
    "--port",
    "0",
    "--device",
    "cpu",
    "--max-num-tokens",
    "16",
    "--max-num-seqs",
    "2",
    "--max-seq-len",
    "64",
    "--strict",
];

/// A server that is ready.
struct Running {
    process: Bounded,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Running {
    /// A server that is ready.
    fn start(cache: &Path, model: &str, flags: &[&str]) -> Self {
        let mut server = command(cache);
        server.args(["serve", "--model", model]).args(flags);
        server.env_remove("PIECEWISE_LOG");
        let process = server.stdout(Stdio::piped()).stderr(Stdio::piped()).bounded();
        let mut process = process.unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let listening = lines.next().unwrap().unwrap();
        let address = listening.strip_prefix("listening at http://").unwrap().to_owned();
        let mut running = Self { process, lines, address };
        assert_eq!(running.lines.next().unwrap().unwrap(), "ready");
        running
    }

    /// The status of an answer.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    /// Ends the server; what it wrote to standard error.
    fn end(mut self) -> String {
        let pid = Pid::from_raw(self.process.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let mut said = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.process.wait().success(), "{said}");
        said
    }
}

/// The block of a start with [`FLAGS`] and an empty cache, whatever the machine and however long it took.
fn assert_block<'a>(lines: impl Iterator<Item = &'a &'a str>) {
    let block: Vec<_> = lines.map(|line| line[28..].trim()).collect();
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"(?m)^(INFO device +).*", "${1}[this machine]");
    settings.add_filter(r"\d+(\.\d)? ([KMG]i)?B\b", "[bytes]");
    settings.add_filter(r"(?m)\d+\.\d\d(,|:|$)", "[seconds]$1");
    settings.bind(|| insta::assert_snapshot!("block", block.join("\n")));
}

/// Before it has found a front end.
#[test]
fn a_worker_says_at_its_start_what_a_server_says() {
    let cache = tempfile::tempdir().unwrap();
    // It takes the connection and never says a word.
    let front_end = TcpListener::bind("127.0.0.1:0").unwrap();
    let handshake = format!("tcp://{}", front_end.local_addr().unwrap());
    let mut worker = command(cache.path());
    worker.args(["worker", "--model", MODEL, "--handshake", &handshake, "--rank", "0"]);
    worker.args(["--no-stand-in", "--state-dir"]).arg(cache.path().join("state")).args(&FLAGS[2..]);
    worker.env_remove("PIECEWISE_LOG").stderr(Stdio::piped());
    let mut worker = worker.bounded().unwrap();
    let lines = BufReader::new(worker.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    for line in lines {
        let is_last = line.contains(" checks ");
        said.push(line);
        if is_last {
            break;
        }
    }
    let is_whole = said.last().is_some_and(|line| line.contains(" checks "));
    assert!(is_whole, "the worker was ended before it said all: {said:?}");
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    assert_block(said.iter());
}

#[test]
fn a_server_says_what_it_runs_in_text_and_in_json() {
    let cache = tempfile::tempdir().unwrap();
    let server = Running::start(cache.path(), MODEL, &FLAGS);
    let asked = ["/health", "/ready", "/metrics", "/v1/models"].map(|path| server.get(path));
    assert_eq!(asked, ["200"; 4]);
    let said = server.end();
    let lines: Vec<&str> = said.lines().collect();
    for line in &lines {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "no time: {line}");
        let level = rest.trim_start().split(' ').next().unwrap();
        assert!(["INFO", "WARN"].contains(&level), "no level: {line}");
    }
    let of_start = |line: &&&str| !line.contains("request{") && !line.contains("drain");
    assert_block(lines.iter().filter(of_start));
    let asked: Vec<_> = lines.iter().filter(|line| line.contains("request{")).collect();
    assert_eq!(asked.len(), 1, "probes and scrapes are for debugging: {said}");
    assert!(asked[0].contains("path=\"/v1/models\"") && asked[0].contains("status=200"), "{said}");
    let milliseconds = asked[0].split("milliseconds=").nth(1).unwrap();
    let decimals = milliseconds.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    assert!(decimals <= 3, "{said}");

    let json = ["--log-format", "json", "--log-level", "debug", "--check", "poison"];
    let server = Running::start(cache.path(), MODEL, &[&FLAGS[..], &json].concat());
    assert_eq!(server.get("/ready"), "200");
    let said = server.end();
    let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()));
    let started: Vec<_> = lines.iter().filter(|line| line["message"] == "started").collect();
    assert_eq!(started.len(), 1, "{said}");
    let start = started[0];
    for (key, value) in [
        ("level", json!("INFO")),
        ("model", json!("tiny-qwen3")),
        ("dtype", json!("bf16")),
        ("graph_mode", json!("full_and_piecewise")),
        ("compiled", json!(0)),
        ("kv_tokens", json!(128)),
        ("max_num_seqs", json!(2)),
        ("max_seq_len", json!(64)),
        ("seqs_at_longest", json!(2)),
        ("checks", json!("poison, strict")),
    ] {
        assert_eq!(start[key], value, "{key}: {start}");
    }
    for key in ["graphs", "reused", "memory_bytes", "weight_bytes", "seconds", "capture_seconds"] {
        assert!(start[key].as_f64() > Some(0.0), "{key}: {start}");
    }
    let probe = lines.iter().find(|line| line["path"] == "/ready").unwrap();
    assert_eq!((&probe["level"], &probe["status"]), (&json!("DEBUG"), &json!(200)), "{probe}");
    assert!(probe["milliseconds"].is_number(), "{probe}");
}

#[test]
fn an_encoder_s_server_says_what_it_runs() {
    let cache = tempfile::tempdir().unwrap();
    let flags = ["--port", "0", "--log-format", "json", "--max-num-tokens", "64"];
    let said = Running::start(cache.path(), "tests/fixtures/encoders/bert", &flags).end();
    let start = said.lines().find(|line| line.contains("\"started\"")).unwrap();
    let start: Value = serde_json::from_str(start).unwrap();
    assert_eq!((&start["model"], &start["dtype"]), (&json!("bert"), &json!("bf16")), "{start}");
    assert!(start["graphs"].as_u64() > Some(0) && start["kv_tokens"].is_null(), "{start}");
}

#[test]
fn levels_and_filters_that_are_none_are_refused() {
    let run = |variable: &str, flags: &[&str]| {
        let mut doctor = command(root());
        doctor.env("PIECEWISE_LOG", variable).arg("doctor").args(flags);
        let output = doctor.bounded_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run("", &["--log-level", "loud"]);
    assert!(code == Some(2) && said.contains("loud") && said.contains("debug"), "{said}");
    let (code, said) = run("loud", &[]);
    assert!(code == Some(1) && said.contains("PIECEWISE_LOG: `loud` is no level"), "{said}");
    assert_eq!(run("piecewise_runtime=debug,warn", &["--log-format", "json"]).0, Some(0));
    let (code, said) = run("", &["--library-dirs", "x"]);
    assert!(code == Some(2) && said.contains("--library-dir"), "{said}");
}
