//! Answers take memory until they are sent, as bodies do until they are read: who takes none of them keeps
//! them for long.

use super::body::Held;
use super::client::Client;
use super::state::State;
use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{self, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use std::sync::Arc;

/// What is sent, and the memory that it takes.
struct Sent {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Takes memory for an answer that comes as a whole; there may be none.
pub(crate) async fn hold(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
    let response = next.run(request).await;
    let Some(length) = response.body().size_hint().exact() else { return response };
    let mut held = state.bodies.hold(client);
    if let Err(error) = held.grow(usize::try_from(length).unwrap_or(usize::MAX)) {
        return error.into_response();
    }
    if !held.is_heavy() {
        return response;
    }
    let (head, body) = response.into_parts();
    match to_bytes(body, usize::MAX).await {
        Ok(bytes) => {
            let sent = Bytes::from_owner(Sent { bytes, _held: held });
            Response::from_parts(head, Body::from(sent))
        }
        Err(error) => super::error::ApiError::internal(error.to_string()).into_response(),
    }
}
