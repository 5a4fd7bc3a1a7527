//! What orchestrators and monitors ask.

use super::error::ApiError;
use super::state::State;
use axum::extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use piecewise_runtime::engine_thread::Phase;
use std::sync::Arc;

/// Whether the process is worth keeping: not once the engine's thread has died.
pub(crate) async fn health(extract::State(state): extract::State<Arc<State>>) -> Response {
    match state.phase() {
        Some(Phase::Stopped) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped\n").into_response()
        }
        _ => "alive\n".into_response(),
    }
}

/// Whether requests may be sent: the weights are loaded, the graphs of the start are captured, and the
/// server is not shutting down.
pub(crate) async fn ready(extract::State(state): extract::State<Arc<State>>) -> Response {
    match state.is_ready() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

pub(crate) async fn metrics(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Response, ApiError> {
    let text = state.metrics()?.text();
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text).into_response())
}
