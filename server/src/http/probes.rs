//! What orchestrators and monitors ask.

use super::error::ApiError;
use super::state::State;
use axum::Json;
use axum::extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use piecewise_runtime::engine_thread::Phase;
use serde_json::{Value, json};
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

/// The program's version.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// The requests that are there, running or waiting.
pub(crate) async fn load(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Json<Value>, ApiError> {
    let load = state.metrics()?.snapshot().load;
    Ok(Json(json!({"server_load": load.running + load.waiting})))
}

/// What is served, and what a request may take of it.
pub(crate) async fn server_info(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Json<Value>, ApiError> {
    let (snapshot, limits) = (state.metrics()?.snapshot(), &state.limits);
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "models": state.names,
        "started": state.started,
        "max_model_len": state.longest(),
        "kv_pages": snapshot.load.kv_pages,
        "graphs": snapshot.graphs,
        "max_head": limits.head_bytes,
        "max_body": limits.body_bytes,
        "max_body_values": limits.body_values,
        "max_body_memory": limits.bodies_bytes,
        "max_waiting_texts": limits.waiting_texts,
        "max_choices": limits.choices,
        "max_logprobs": limits.logprobs,
        "max_stop_ids": limits.stop_ids,
        "max_stop_texts": limits.stop_texts,
        "max_texts": limits.texts,
        "max_connections": limits.connections,
        "max_connections_per_address": limits.of_address(limits.connections),
        "max_probe_connections": limits.probe_connections,
        "priorities": limits.priorities,
        "ignores_unknown_fields": limits.ignores_unknown_fields,
    })))
}
