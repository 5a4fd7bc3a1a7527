//! What is written to a client, who must take it in time.

use crate::places::Place;
use rustix::net::{RecvFlags, Shutdown, recv};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A stream whose other side must take what is written within a time.
pub(super) struct Patient {
    stream: Arc<TcpStream>,
    place: Arc<Place>,
    time: Duration,
    /// Since something could not be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(super) fn new(stream: Arc<TcpStream>, place: Arc<Place>, time: Duration) -> Self {
        Self { stream, place, time, stalled: None }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let mut short = None;
            // Where less was there than there is room for, nothing is left to ask the kernel for before more
            // comes: to say so here spares the call that would only find that out.
            let read = self.stream.try_io(Interest::READABLE, || {
                let room = buffer.initialize_unfilled();
                let (bytes, _) = recv(&*self.stream, &mut *room, RecvFlags::empty())?;
                if 0 < bytes && bytes < room.len() {
                    short = Some(bytes);
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(bytes)
            });
            match (read, short) {
                (Ok(bytes), _) | (Err(_), Some(bytes)) => {
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {}
                (Err(error), None) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(context)?.is_ready() {
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.stalled = None;
                    return Poll::Ready(written);
                }
            }
        }
        let time = self.time;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(time)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Is called when all that there was to write has been written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.place.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self.stream, Shutdown::Write).map_err(Into::into))
    }
}
