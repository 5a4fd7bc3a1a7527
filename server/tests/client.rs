//! A server on a port of its own, and one who asks it.

use piecewise_server::{ApiKeys, Limits, Server, ServerOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;

/// A server without a model yet, for whoever asks for `tiny`.
pub(crate) fn bind() -> Server {
    Server::bind(ServerOptions {
        address: ([127, 0, 0, 1], 0).into(),
        model_names: vec!["tiny".to_owned()],
        keys: ApiKeys::default(),
        limits: Limits::default(),
        threads: NonZeroUsize::MIN,
    })
    .unwrap()
}

/// The whole answer to a request, such as `GET /health`, with this body.
pub(crate) fn ask(address: SocketAddr, request: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
