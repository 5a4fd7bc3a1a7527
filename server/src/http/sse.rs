//! Server-sent events.

use super::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;

/// What makes the events of a response; dropped when the client has gone.
pub(crate) trait Events: Send + 'static {
    /// Writes the events that there are next; waits for some. Returns whether more will come.
    fn next(&mut self, frame: &mut Frame) -> impl Future<Output = Result<bool, ApiError>> + Send;
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

    fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// A response that goes on for as long as there are events.
pub(crate) fn response<E: Events>(events: E) -> Response {
    // Boxed, since it moves with each frame.
    let frames = stream::unfold(Some(Box::new(events)), |events| async {
        let mut events = events?;
        let mut frame = Frame::default();
        let more = match events.next(&mut frame).await {
            Ok(more) => more,
            Err(error) => {
                frame.event(0, |body| body.extend(error.body().to_string().into_bytes()));
                false
            }
        };
        if !more {
            frame.done();
        }
        let bytes = Ok::<_, std::convert::Infallible>(Bytes::from(frame.0));
        Some((bytes, more.then_some(events)))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
