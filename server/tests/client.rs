//! A server on a port of its own, and one who asks it.

use piecewise_runtime::engine::Engine;
use piecewise_runtime::engine_thread::{EngineThread, ThreadOptions};
use piecewise_server::{
    AllowedOrigins, ApiKeys, Limits, Outcome, ServedModel, Server, ServerOptions,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// No answer takes nearly so long, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A server without a model yet, for whoever asks for `tiny`, with an operator's paths.
pub(crate) fn bind() -> Server {
    bind_as(|_| {})
}

/// As [`bind`], but for what is changed.
pub(crate) fn bind_as(change: impl FnOnce(&mut ServerOptions)) -> Server {
    let mut options = ServerOptions {
        addresses: vec![([127, 0, 0, 1], 0).into()],
        model_names: vec!["tiny".to_owned()],
        keys: ApiKeys::default(),
        origins: AllowedOrigins::default(),
        limits: Limits::default(),
        tls: None,
        admin: true,
        threads: NonZeroUsize::MIN,
    };
    change(&mut options);
    Server::bind(options).unwrap()
}

/// Serves an engine whose prompts are ids, until the process ends.
pub(crate) fn serve(engine: Engine) -> SocketAddr {
    serve_to_its_end(engine).0
}

/// The same, of a model that says more of itself.
pub(crate) fn serve_model(engine: Engine, model: ServedModel) -> SocketAddr {
    serve_at(bind(), engine, model).0
}

/// As [`serve`], and how the server ended once it does.
pub(crate) fn serve_to_its_end(
    engine: Engine,
) -> (SocketAddr, JoinHandle<std::io::Result<Outcome>>) {
    serve_at(bind(), engine, ServedModel::default())
}

/// As [`serve_to_its_end`], by a server that is there.
pub(crate) fn serve_at(
    server: Server,
    engine: Engine,
    model: ServedModel,
) -> (SocketAddr, JoinHandle<std::io::Result<Outcome>>) {
    let address = server.address();
    let thread = EngineThread::start(engine, ThreadOptions::default()).unwrap();
    let (ready, is_ready) = mpsc::channel();
    let end = std::thread::spawn(move || server.serve(thread, model, || ready.send(()).unwrap()));
    is_ready.recv_timeout(PATIENCE).unwrap();
    (address, end)
}

/// The whole answer to a request, such as `GET /health`, with this body.
pub(crate) fn ask(address: SocketAddr, request: &str, body: &str) -> String {
    ask_with(address, request, "Host: localhost\r\n", body)
}

/// As [`ask`], with headers of one's own.
pub(crate) fn ask_with(address: SocketAddr, request: &str, headers: &str, body: &str) -> String {
    String::from_utf8(ask_bytes(address, request, headers, body)).unwrap()
}

/// As [`ask_with`], of an answer that may be no text.
pub(crate) fn ask_bytes(address: SocketAddr, request: &str, headers: &str, body: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}
