//! `/v1/messages` and `/v1/messages/count_tokens`, Anthropic's interface: a request becomes one of the
//! chat, and its reply is shown as blocks.

mod blocks;
mod content;
mod manners;
mod reply;
mod request;
mod silence;

pub(crate) use manners::adapt;
pub(crate) use request::{FIELDS, SHARED_FIELDS};

use super::chat_prompt;
use super::error::ApiError;
use super::fields::Fields;
use super::replying::{Asked, Replying};
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
    state.served()?;
    let take = |state: &State, fields| {
        Asked::take(state, request::of_reply(fields)?).map_err(request::in_its_words)
    };
    let asked = Fields::read(request, &state, take).await?;
    let replying = Replying::begin(&state, asked).await.map_err(request::in_its_words)?;
    Reply::new(&state, replying).respond().await
}

pub(crate) async fn count_tokens(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    state.served()?;
    let take = |_: &State, fields| {
        let mut fields = request::of_count(fields)?;
        let asked = chat_prompt::take(&mut fields).map_err(request::in_its_words)?;
        Ok((asked, fields.finish()?))
    };
    let (asked, held) = Fields::read(request, &state, take).await?;
    let encoded = chat_prompt::encode(&state, &held, asked).await;
    let (ids, _) = encoded.map_err(request::in_its_words)?;
    Ok(Json(json!({"input_tokens": ids.len()})))
}
