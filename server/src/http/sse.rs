//! Server-sent events.

use super::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// What makes the events of a response; dropped when the client has gone.
pub(crate) trait Events: Send + Unpin + 'static {
    /// Writes the events that there are next; waits for some. Returns whether more will come.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut Frame,
    ) -> Poll<Result<bool, ApiError>>;

    /// Writes what stands behind the events: where they end by an error, that too.
    fn end(&self, frame: &mut Frame, error: Option<&ApiError>) {
        if let Some(error) = error {
            frame.event(0, |body| body.extend(error.body().to_string().into_bytes()));
        }
        frame.event(0, |body| body.extend_from_slice(b"[DONE]"));
    }
}

/// What an event has beside its head, mostly.
const TOKEN_BYTES: usize = 128;

/// Events that go out together.
#[derive(Debug, Default)]
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    /// Adds an event, which `write` writes, of `bytes` and what a token takes.
    pub(crate) fn event(&mut self, bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.reserve(bytes + TOKEN_BYTES);
        self.0.extend_from_slice(b"data: ");
        write(&mut self.0);
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an event that has a name.
    pub(crate) fn named(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.event(0, write);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The body of a response, while there are events.
struct EventBody<E>(Option<E>);

impl<E: Events> body::Body for EventBody<E> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<body::Frame<Bytes>, Infallible>>> {
        let Some(events) = &mut self.0 else { return Poll::Ready(None) };
        let mut frame = Frame::default();
        let more = ready!(events.poll_next(context, &mut frame));
        if !matches!(more, Ok(true)) {
            events.end(&mut frame, more.as_ref().err());
            self.0 = None;
        }
        Poll::Ready(Some(Ok(body::Frame::data(Bytes::from(frame.0)))))
    }
}

/// A response that goes on for as long as there are events.
pub(crate) fn response<E: Events>(events: E) -> Response {
    let mut response = Response::new(Body::new(EventBody(Some(events))));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
