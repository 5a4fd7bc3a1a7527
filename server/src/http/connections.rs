//! Connections: taken, bounded in number and time, and closed.

use super::state::Limits;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};

/// A request has a head of at most so many bytes.
const HEAD_BYTES: usize = 64 << 10;

/// What the system holds for a client that takes it slowly, in bytes: left to itself it holds
/// megabytes, and tells that some was taken once a third of them is.
const SEND_BYTES: u32 = 256 << 10;
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;

/// Must be called within a runtime, which the socket is polled by.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Takes connections until `closing` says so. Those that are there go on to the end of the answer that
/// they are at; each keeps a receiver of `closing` until then.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed(&mut closing) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: some will be given back.
                tracing::warn!("a connection can't be taken: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        // A small token is not to wait for the next one.
        let _ = stream.set_nodelay(true);
        let (router, closing) = (router.clone(), closing.clone());
        tokio::spawn(async move {
            serve(stream, router, limits, closing).await;
            drop(place);
        });
    }
}

async fn serve(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    let stream = Patient { stream, time: limits.write_time, stalled: None };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    // A token is a few hundred bytes: to copy them once more costs less than to list them.
    builder.max_buf_size(HEAD_BYTES).writev(false);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // A sender that is gone closes too.
    drop(closing.wait_for(|closes| *closes).await);
}

/// A stream whose other side must take what is written within a time.
struct Patient {
    stream: TcpStream,
    time: Duration,
    /// Since something could not be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn waited<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let time = self.time;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(time)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.waited(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.waited(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use std::io::{Read, Write};
    use tokio::sync::mpsc;

    /// A body without an end says by this that it was dropped.
    struct Told(mpsc::UnboundedSender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    /// A client that takes nothing is closed after a while, and one that takes a little all the time
    /// is not.
    #[tokio::test]
    async fn who_takes_nothing_is_closed() {
        let (dropped, mut told) = mpsc::unbounded_channel();
        let endless = move || {
            let held = Told(dropped.clone());
            let chunks = futures_util::stream::repeat_with(move || {
                let _ = &held;
                Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 1 << 14]))
            });
            async move { Body::from_stream(chunks) }
        };
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { write_time: Duration::from_millis(300), ..Limits::default() };
        let (close, closing) = watch::channel(false);
        tokio::spawn(accept(listener, Router::new().route("/", get(endless)), limits, closing));
        let ask = move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream
        };
        let takes = tokio::task::spawn_blocking(move || {
            let (mut reader, mut some) = (ask(), vec![0; 1 << 16]);
            for _ in 0..60 {
                reader.read_exact(&mut some).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            reader
        });
        let idle = tokio::task::spawn_blocking(ask).await.unwrap();
        told.recv().await.unwrap();
        let reader = takes.await.unwrap();
        assert!(told.is_empty(), "who takes some is closed too");
        drop((idle, reader));
        told.recv().await.unwrap();
        close.send(true).unwrap();
        close.closed().await;
    }
}
