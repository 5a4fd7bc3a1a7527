//! Server-sent events.

use super::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde::Serialize;

/// What makes the events of a response; dropped when the client has gone.
pub(crate) trait Events: Send + 'static {
    /// Writes the events that there are next; waits for some. Returns whether more will come.
    fn next(&mut self, frame: &mut Frame) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

/// Events that go out together.
#[derive(Debug, Default)]
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    /// Adds an event.
    pub(crate) fn event(&mut self, value: &impl Serialize) {
        let start = self.0.len();
        self.0.extend_from_slice(b"data: ");
        // What is sent has no keys that are no strings, and memory takes all of it.
        if serde_json::to_writer(&mut self.0, value).is_err() {
            return self.0.truncate(start);
        }
        self.0.extend_from_slice(b"\n\n");
    }

    fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// A response that goes on for as long as there are events.
pub(crate) fn response<E: Events>(events: E) -> Response {
    let frames = stream::unfold(Some(events), |events| async {
        let mut events = events?;
        let mut frame = Frame::default();
        let more = match events.next(&mut frame).await {
            Ok(more) => more,
            Err(error) => {
                frame.event(&error.body());
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
