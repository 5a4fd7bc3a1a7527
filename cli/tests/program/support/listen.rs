//! Servers that tests are against.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Answers each connection on a thread of its own until the process ends: the address that they come to.
pub(crate) fn listen(
    answer: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            // Who is gone needs no answer.
            std::thread::spawn(move || drop(answer(stream)));
        }
    });
    address
}
