//! The operator's paths, where they are asked for.

use super::client::Client;
use super::error::ApiError;
use super::state::State;
use crate::operate::{Order, Refusal, Reply};
use axum::Json;
use axum::extract::{self, Request};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Whoever goes away while it is done does not undo it.
pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
    if !state.keys.lets_operate(&client) {
        return Err(ApiError::no_operator());
    }
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let order = Order::read(request.method().as_str(), uri.path(), query)?;
    let (answer, answered) = oneshot::channel();
    order.give(&state.served()?.engine, Box::new(move |result| drop(answer.send(result))));
    Ok(match answered.await.map_err(|_| ApiError::stopped())?? {
        Reply::Json(value) => Json(value).into_response(),
        Reply::Trace(bytes) => {
            ([(CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
        }
    })
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Parameter { name, message } => Self::field(&name, message),
            Refusal::NoPath => Self::wrong_method(),
            Refusal::Asleep => Self::asleep(message),
            Refusal::Profile(_) => Self::conflict(message),
            Refusal::Failed(_) => Self::internal(message),
        }
    }
}
