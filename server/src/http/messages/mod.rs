//! `/v1/messages` and `/v1/messages/count_tokens`, Anthropic's interface: a request becomes one of the
//! chat, and its reply is shown as blocks.

mod blocks;
mod content;
mod manners;
mod reply;
mod request;

pub(crate) use manners::adapt;
pub(crate) use request::{FIELDS, SHARED_FIELDS};

use super::chat_prompt;
use super::error::ApiError;
use super::fields::Fields;
use super::replying::Replying;
use super::state::State;
use axum::Json;
use axum::extract::{self, Request};
use axum::response::Response;
use reply::Reply;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = read(&state, request, request::of_reply).await?;
    let replying = Replying::begin(&state, fields).await.map_err(request::in_its_words)?;
    Reply::new(&state, replying).respond().await
}

/// The fields of the chat for a request; those of a large one are made off the threads that others wait for.
async fn read(
    state: &State,
    request: Request,
    translated: fn(Fields) -> Result<Fields, ApiError>,
) -> Result<Fields, ApiError> {
    state.served()?;
    let fields = Fields::read(request, state).await?;
    match fields.are_large() {
        true => state.text_turns.run(move |_| translated(fields)).await,
        false => translated(fields),
    }
}

pub(crate) async fn count_tokens(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let mut fields = read(&state, request, request::of_count).await?;
    let asked = chat_prompt::take(&mut fields).map_err(request::in_its_words)?;
    let encoded = chat_prompt::encode(&state, &fields.finish()?, asked).await;
    let (ids, _) = encoded.map_err(request::in_its_words)?;
    Ok(Json(json!({"input_tokens": ids.len()})))
}
