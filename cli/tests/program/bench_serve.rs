//! The load generator, against our own server and against one that waits for what happens.

use crate::bounded::Bound;
use crate::serve::started;
use crate::support::cli::{command, device_flags};
use crate::support::listen::listen;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

fn bench(url: &str, extra: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(folder.path());
    command
        .args(["bench", "serve", "--url", url, "--json"])
        .args(extra)
        .env("NO_PROXY", "127.0.0.1");
    let output = command.env_remove("OPENAI_API_KEY").bounded_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {said}")), said)
}

#[test]
fn our_own_server_is_measured_as_it_counts() {
    let server = started(&["--dtype", "f32", "--max-num-tokens", "64"], &device_flags());
    let address = &server.address;
    let url = format!("http://{address}");
    let out = tempfile::NamedTempFile::new().unwrap();
    let made_up =
        ["--ids-below", "900", "--input-tokens", "8-16", "--output-tokens", "5", "--ignore-eos"];
    let load =
        ["--requests", "6", "--concurrency", "2", "--warmup", "2", "--percentiles", "50,99.9"];
    let more = ["--goodput", "e2e=600000", "--out", out.path().to_str().unwrap()];
    let (found, said) = bench(&url, &[&made_up[..], &load, &more].concat());
    for (name, value) in [
        ("completed", json!(6)),
        ("failed", json!(0)),
        ("total_output_tokens", json!(30)),
        ("good_completed", json!(6)),
        ("model_id", json!("tiny-qwen3")),
        ("max_concurrency", json!(2)),
    ] {
        assert_eq!(found[name], value, "{name}: {found} {said}");
    }
    let number = |name: &str| found[name].as_f64().unwrap_or_else(|| panic!("{name}: {found}"));
    assert!((48.0..=96.0).contains(&number("total_input_tokens")), "{found}");
    assert!((1.0..=2.0).contains(&number("max_concurrent_requests")), "{found}");
    assert!(number("mean_ttft_ms") > 0.0 && number("mean_e2el_ms") >= number("mean_ttft_ms"));
    assert!(number("p99.9_tpot_ms") >= number("p50_tpot_ms"));
    let rows = std::fs::read_to_string(out.path()).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row["output_tokens"] == 5 && row["error"].is_null()), "{rows:?}");
    // Texts of a dataset, begun again; each line may say how long its answer is.
    let dataset = tempfile::NamedTempFile::new().unwrap();
    let lines = "{\"prompt\": \"def f(\", \"max_tokens\": 2}\n{\"prompt\": \"import\"}\n";
    std::fs::write(dataset.path(), lines).unwrap();
    let dataset = ["--dataset", dataset.path().to_str().unwrap(), "--ignore-eos"];
    let (found, _) = bench(
        &url,
        &[&dataset[..], &["--requests", "3", "--output-tokens", "4", "--rate", "1000"]].concat(),
    );
    assert_eq!(
        (&found["completed"], &found["total_output_tokens"]),
        (&json!(3), &json!(8)),
        "{found}"
    );
    let (found, _) = bench(&url, &["--model", "other", "--requests", "2", "--warmup", "0"]);
    assert_eq!((&found["completed"], &found["failed"]), (&json!(0), &json!(2)), "{found}");
    assert!(found["errors"].to_string().contains("there is no model `other`"), "{found}");
    server.end();
}

/// How a request is answered.
#[derive(Clone, Copy)]
enum Answer {
    Whole,
    /// Without the end of the stream.
    Cut,
    /// With an event that says what is wrong.
    Error,
    /// With a status.
    Busy,
    /// With nothing until the client has gone.
    Nothing,
}

/// A server that answers once so many requests are there, or all that are to come.
struct Slow {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    answers: VecDeque<Answer>,
    /// Those that wait for others.
    together: usize,
    left: usize,
    there: usize,
    most: usize,
    /// So many may be answered.
    let_go: usize,
}

impl Slow {
    fn start(together: usize, answers: &[Answer]) -> (Arc<Self>, SocketAddr) {
        let answers: VecDeque<_> = answers.iter().copied().collect();
        let left = answers.len();
        let state = State { answers, together, left, there: 0, most: 0, let_go: 0 };
        let slow = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() });
        let served = Arc::clone(&slow);
        (slow, listen(move |stream| served.answer(stream)))
    }

    /// Waits until as many requests are there as are to come together.
    fn wait(&self) -> Answer {
        let mut state = self.state.lock().unwrap();
        state.there += 1;
        state.left -= 1;
        state.most = state.most.max(state.there);
        if state.there >= state.together.min(state.there + state.left) {
            state.let_go += state.there;
            self.changed.notify_all();
        }
        let mut state = self.changed.wait_while(state, |state| state.let_go == 0).unwrap();
        state.let_go -= 1;
        state.answers.pop_front().unwrap()
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body)?;
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert!(head.starts_with("post /v1/chat/completions "), "{head}");
        assert_eq!((&body["model"], &body["stream"]), (&json!("slow"), &json!(true)));
        assert_eq!(body["user"], "me", "fields of one's own are sent");
        let answer = self.wait();
        self.state.lock().unwrap().there -= 1;
        if let Answer::Busy = answer {
            return write!(
                stream,
                "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy"
            );
        }
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n"
        )?;
        let event = |stream: &mut TcpStream, event: Value| write!(stream, "data: {event}\n\n");
        if let Answer::Nothing = answer {
            stream.flush()?;
            return stream.read_to_end(&mut Vec::new()).map(drop);
        }
        for text in ["a", "b", "c"] {
            event(&mut stream, json!({"choices": [{"delta": {"content": text}}]}))?;
        }
        match answer {
            Answer::Cut => return Ok(()),
            Answer::Error => {
                event(&mut stream, json!({"error": {"message": "the engine has stopped"}}))?
            }
            _ => {}
        }
        write!(stream, "data: [DONE]\n\n")
    }
}

const CHAT: [&str; 8] = [
    "--chat",
    "--model",
    "slow",
    "--warmup",
    "0",
    "--extra-body",
    "{\"user\": \"me\"}",
    "--requests",
];

/// Whoever comes at a rate, or all at once, waits for nobody's answer: this server gives none before all are
/// there.
#[test]
fn requests_come_whether_or_not_others_have_their_answers() {
    for rate in [&[][..], &["--rate", "500"]] {
        let (slow, address) = Slow::start(8, &[Answer::Whole; 8]);
        let (found, said) =
            bench(&format!("http://{address}/v1/"), &[&CHAT[..], &["8"], rate].concat());
        assert_eq!(found["completed"], 8, "{found} {said}");
        assert_eq!(found["max_concurrent_requests"], 8, "{found}");
        // This server says nothing of tokens: pieces are counted.
        assert_eq!(found["total_output_tokens"], 24, "{found}");
        assert_eq!(slow.state.lock().unwrap().most, 8);
    }
}

#[test]
fn no_more_are_on_their_way_than_may_be() {
    let (slow, address) = Slow::start(3, &[Answer::Whole; 9]);
    let (found, _) =
        bench(&format!("http://{address}"), &[&CHAT[..], &["9", "--concurrency", "3"]].concat());
    assert_eq!(
        (&found["completed"], &found["max_concurrent_requests"]),
        (&json!(9), &json!(3)),
        "{found}"
    );
    assert_eq!(slow.state.lock().unwrap().most, 3);
}

#[test]
fn what_fails_is_counted_by_why_and_its_times_are_no_answers() {
    let answers = [Answer::Whole, Answer::Cut, Answer::Error, Answer::Busy];
    let (_slow, address) = Slow::start(1, &answers);
    let flags = ["4", "--concurrency", "1"];
    let (found, _) = bench(&format!("http://{address}"), &[&CHAT[..], &flags].concat());
    assert_eq!((&found["completed"], &found["failed"]), (&json!(1), &json!(3)), "{found}");
    let errors = found["errors"].as_object().unwrap();
    for why in [
        "the stream ended before",
        "in the stream: the engine has stopped",
        "503 Service Unavailable: busy",
    ] {
        assert!(errors.keys().any(|error| error.contains(why)), "{why}: {errors:?}");
    }
    assert_eq!(found["total_output_tokens"], 3, "{found}");
}

/// The server sends nothing until its client has gone.
#[test]
fn who_gets_nothing_for_long_counts_a_failure() {
    let (_slow, address) = Slow::start(1, &[Answer::Nothing]);
    let url = format!("http://{address}");
    let (found, _) = bench(&url, &[&CHAT[..], &["1", "--timeout", "1"]].concat());
    assert_eq!((&found["completed"], &found["failed"]), (&json!(0), &json!(1)), "{found}");
    assert!(found["errors"].to_string().contains("timed out"), "{found}");
}
