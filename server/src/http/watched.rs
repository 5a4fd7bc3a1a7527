//! Bodies whose ends are told of.

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// One that calls `at_end` once its last part was taken; one that is dropped before that drops it.
pub(super) fn watched<B, F>(body: B, at_end: F) -> Watched<F>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    F: FnOnce() + Send + Unpin + 'static,
{
    let mut watched = Watched { body: Body::new(body), at_end: Some(at_end) };
    if watched.body.is_end_stream() {
        watched.ended();
    }
    watched
}

/// A body and who is told of its end.
pub(super) struct Watched<F> {
    body: Body,
    at_end: Option<F>,
}

impl<F: FnOnce()> Watched<F> {
    fn ended(&mut self) {
        if let Some(at_end) = self.at_end.take() {
            at_end();
        }
    }
}

impl<F: FnOnce() + Unpin> HttpBody for Watched<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.ended();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
