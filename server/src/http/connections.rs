//! Connections: taken, bounded in number and time, and closed.

use super::state::Limits;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};

/// A request has a head of at most so many bytes.
const HEAD_BYTES: usize = 64 << 10;

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
    builder.max_buf_size(HEAD_BYTES);
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
