//! What orchestrators, monitors and operators ask of a worker, over HTTP: `/health`, `/ready`, `/metrics` and,
//! where they are asked for, the operator's paths.

use http::{HeaderMap, HeaderName, HeaderValue};
use piecewise_runtime::engine_thread::{EngineHandle, Phase, Rest};
use piecewise_server::check_operator;
use piecewise_server::operate::{Order, Refusal, Reply};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a client may take; the next one waits so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of a request.
const MAX_HEAD: usize = 8 << 10;

/// What probes and metrics are answered from.
#[derive(Clone, Debug)]
pub(crate) struct Probed {
    pub(crate) engine: EngineHandle,
    /// Whether there is a front end.
    pub(crate) has_joined: Arc<AtomicBool>,
    /// Whether there are the operator's paths.
    pub(crate) admin: bool,
}

/// Answers one client after the other, on a thread of its own, and on others those that an operator's order
/// may keep waiting.
pub(crate) fn serve(listener: TcpListener, probed: Probed) -> std::io::Result<SocketAddr> {
    let (address, admin) = (listener.local_addr()?, probed.admin);
    std::thread::Builder::new().name("probes".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let probed = probed.clone();
            let answers = move || {
                if let Err(error) = stream.and_then(|stream| answer(stream, &probed)) {
                    tracing::debug!("a probe has no answer: {error}");
                }
            };
            if admin { drop(std::thread::spawn(answers)) } else { answers() }
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream, probed: &Probed) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut bytes)?;
        head.extend_from_slice(&bytes[..count]);
        if count == 0 || head.len() > MAX_HEAD {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_ascii_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some(method), Some(target)) => probed.answer(method, target, &headers(&head)),
        _ => ("400 Bad Request", Body::Text("this is no HTTP\n".to_owned())),
    };
    let (kind, bytes) = match body {
        Body::Text(text) => ("text/plain; version=0.0.4; charset=utf-8", text.into_bytes()),
        Body::Bytes(bytes) => ("application/octet-stream", bytes),
    };
    let length = bytes.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )?;
    stream.write_all(&bytes)
}

/// What is answered with.
enum Body {
    Text(String),
    Bytes(Vec<u8>),
}

/// The headers of a request, but for what is none.
fn headers(head: &str) -> HeaderMap {
    let lines = head.lines().skip(1).map_while(|line| line.split_once(':'));
    let header = |(name, value): (&str, &str)| {
        Some((name.parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
    };
    lines.filter_map(header).collect()
}

impl Probed {
    fn answer(&self, method: &str, target: &str, headers: &HeaderMap) -> (&'static str, Body) {
        let text = |(status, text): (&'static str, String)| (status, Body::Text(text));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if self.admin {
            match Order::read(method, path, query) {
                Err(Refusal::NoPath) => {}
                // Nobody has a key here, and only this machine reaches it.
                _ if let Err(why) = check_operator(headers) => {
                    return text(("403 Forbidden", format!("{why}\n")));
                }
                Err(refusal) => return text(refused(refusal)),
                Ok(order) => return self.give(order),
            }
        }
        text(match method {
            "GET" => self.status(path),
            _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
        })
    }

    /// Has the engine do it, and waits until it has.
    fn give(&self, order: Order) -> (&'static str, Body) {
        let (answer, answered) = mpsc::channel();
        order.give(&self.engine, Box::new(move |result| drop(answer.send(result))));
        let (status, text) = match answered.recv() {
            Ok(Ok(Reply::Trace(bytes))) => return ("200 OK", Body::Bytes(bytes)),
            Ok(Ok(Reply::Json(result))) => ("200 OK", format!("{result}\n")),
            Ok(Err(refusal)) => refused(refusal),
            Err(_) => ("503 Service Unavailable", "the engine has stopped\n".to_owned()),
        };
        (status, Body::Text(text))
    }

    fn status(&self, path: &str) -> (&'static str, String) {
        let unavailable = |why: &str| ("503 Service Unavailable", format!("{why}\n"));
        match (path, self.engine.phase()) {
            ("/health" | "/ready", Phase::Stopped) => unavailable("the engine has stopped"),
            ("/health", _) => ("200 OK", "alive\n".to_owned()),
            ("/ready", Phase::Draining | Phase::Stopping) => {
                unavailable("the worker is shutting down")
            }
            ("/ready", _) if self.engine.rest() > Rest::Awake => unavailable("the engine sleeps"),
            ("/ready", _) if !self.has_joined.load(Ordering::Relaxed) => {
                unavailable("there is no front end")
            }
            ("/ready", _) => ("200 OK", "ready\n".to_owned()),
            ("/metrics", _) => match self.engine.metrics().text() {
                Ok(text) => ("200 OK", text),
                Err(error) => ("500 Internal Server Error", format!("{error}\n")),
            },
            _ => ("404 Not Found", "there are /health, /ready and /metrics\n".to_owned()),
        }
    }
}

fn refused(refusal: Refusal) -> (&'static str, String) {
    let status = match refusal {
        Refusal::Parameter { .. } => "400 Bad Request",
        Refusal::NoPath => "404 Not Found",
        Refusal::Profile(_) => "409 Conflict",
        Refusal::Asleep => "503 Service Unavailable",
        Refusal::Failed(_) => "500 Internal Server Error",
    };
    (status, format!("{refusal}\n"))
}
