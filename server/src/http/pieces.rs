//! Answers on their way to a connection, which come piece by piece.

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Bytes of a piece. hyper copies what it is given until its client takes it: given the whole of a large
/// answer it would hold that beside what the memory of answers counts.
const PIECE: usize = 32 << 10;

/// The same body in frames of at most [`PIECE`] bytes, each handed on when those before it are on their way.
pub(super) fn in_pieces(body: Body) -> Pieces {
    Pieces { body, rest: Bytes::new() }
}

/// A body, and what is left of its last frame.
pub(super) struct Pieces {
    body: Body,
    rest: Bytes,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(bytes) => self.rest = bytes,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        of_body.upper().into_iter().for_each(|upper| hint.set_upper(upper + rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn pieces_are_the_body_and_their_lengths_are_known() {
        for length in [0, 1, PIECE, PIECE + 1, 3 * PIECE] {
            let bytes = Bytes::from_iter((0..length).map(|at| at as u8));
            let pieces = in_pieces(Body::from(bytes.clone()));
            assert_eq!(pieces.size_hint().exact(), Some(length as u64));
            let pieces = Body::new(pieces).into_data_stream();
            let pieces: Vec<Bytes> = pieces.map(Result::unwrap).collect().await;
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE), "{length}");
            assert_eq!(pieces.concat(), bytes);
        }
        let frames = [vec![1; PIECE + 1], vec![], vec![2]].map(Ok::<_, axum::Error>);
        let mut pieces = in_pieces(Body::from_stream(futures_util::stream::iter(frames)));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut pieces).poll_frame(&mut context).is_ready());
        assert_eq!((pieces.size_hint().lower(), pieces.size_hint().upper()), (1, None));
        assert!(!pieces.is_end_stream());
    }
}
