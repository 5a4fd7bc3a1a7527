//! What orchestrators and monitors ask of a worker, over HTTP: `/health`, `/ready` and `/metrics`.

use piecewise_runtime::engine_thread::{EngineHandle, Phase};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a client may take; the next one waits so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of a request.
const MAX_HEAD: usize = 8 << 10;

/// Who is asked.
#[derive(Clone, Debug)]
pub(crate) struct Probed {
    pub(crate) engine: EngineHandle,
    /// Whether there is a front end.
    pub(crate) has_joined: Arc<AtomicBool>,
}

/// Answers one client after the other, on a thread of its own.
pub(crate) fn serve(listener: TcpListener, probed: Probed) -> std::io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("probes".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| answer(stream, &probed)) {
                tracing::debug!("a probe has no answer: {error}");
            }
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
    let (status, text) = match (words.next(), words.next()) {
        (Some("GET"), Some(path)) => probed.status(path),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    let length = text.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
}

impl Probed {
    fn status(&self, path: &str) -> (&'static str, String) {
        let unavailable = |why: &str| ("503 Service Unavailable", format!("{why}\n"));
        match (path, self.engine.phase()) {
            ("/health" | "/ready", Phase::Stopped) => unavailable("the engine has stopped"),
            ("/health", _) => ("200 OK", "alive\n".to_owned()),
            ("/ready", Phase::Draining | Phase::Stopping) => {
                unavailable("the worker is shutting down")
            }
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
