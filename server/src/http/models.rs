//! `/v1/models`, `/tokenize` and `/detokenize`.

use super::body::Held;
use super::chat_prompt;
use super::error::ApiError;
use super::fields::{Field, Fields, MODEL, field, ids, schema};
use super::logprobs::spell;
use super::state::State;
use crate::structured::Wanted;
use axum::Json;
use axum::extract::{self, Path, Request};
use serde_json::{Value, json};
use std::sync::Arc;

/// The fields of `/tokenize`.
pub(crate) const TOKENIZE_FIELDS: &[Field] = &[
    MODEL,
    field("prompt", schema::TEXT, "The text, where there are no `messages`."),
    field("return_token_strs", schema::FLAG, "Whether the answer says what each id stands for."),
];

/// The fields of `/detokenize`.
pub(crate) const DETOKENIZE_FIELDS: &[Field] = &[
    MODEL,
    field("tokens", schema::IDS, "The ids."),
    field(
        "skip_special_tokens",
        schema::FLAG_THAT_IS_SET,
        "Whether special tokens have no text, as in answers.",
    ),
];

fn model(state: &State, name: &str) -> Value {
    let length = state.longest();
    json!({
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "piecewise",
        "max_model_len": length,
    })
}

pub(crate) async fn list(extract::State(state): extract::State<Arc<State>>) -> Json<Value> {
    let models: Vec<_> = state.names.iter().map(|name| model(&state, name)).collect();
    Json(json!({"object": "list", "data": models}))
}

pub(crate) async fn one(
    extract::State(state): extract::State<Arc<State>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    state.check_name(Some(name.clone()))?;
    Ok(Json(model(&state, &name)))
}

pub(crate) async fn tokenize(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (shows, asked, held) = Fields::read(request, &state, |_, mut fields| {
        let shows = fields.flag("return_token_strs")?;
        let asked = Counted::take(&mut fields)?;
        Ok((shows, asked, fields.finish()?))
    })
    .await?;
    let ids = match asked {
        Counted::Messages(asked) => chat_prompt::encode(&state, &held, asked).await?.0,
        Counted::Text { text, special } => of_text(&state, &held, text, special).await?,
    };
    let strings = |ids: &[u32]| {
        let spell = |&id: &u32| spell(state.vocabulary(), id);
        Vec::from_iter(ids.iter().map(spell))
    };
    let strings = shows.then(|| strings(&ids));
    let length = state.longest();
    Ok(Json(json!({
        "count": ids.len(), "max_model_len": length, "tokens": ids, "token_strs": strings,
    })))
}

/// What has tokens.
enum Counted {
    Messages(chat_prompt::Asked),
    Text {
        text: String,
        /// Whether the tokenizer's own special tokens are added.
        special: bool,
    },
}

impl Counted {
    fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        if fields.object().get("messages").is_some_and(|value| !value.is_null()) {
            return chat_prompt::take(fields).map(Self::Messages);
        }
        fields.ignore(&["messages"]);
        let text = fields.text("prompt")?.ok_or_else(|| ApiError::field("prompt", "is missing"))?;
        Ok(Self::Text { text, special: fields.flag_or("add_special_tokens", true)? })
    }
}

/// The ids of a text.
async fn of_text(
    state: &State,
    held: &Held,
    prompt: String,
    special: bool,
) -> Result<Vec<u32>, ApiError> {
    let tokenizer = Arc::clone(state.tokenizer("prompt")?);
    let room = state.room()?;
    room.check_text("prompt", &prompt)?;
    let bytes = prompt.len();
    let encode = move |is_wanted: Wanted<'_>| match prompt.is_empty() {
        true => Ok(Vec::new()),
        false => room.encode(&tokenizer, "prompt", (&prompt, special), is_wanted),
    };
    state.read_texts(held, bytes, encode).await
}

pub(crate) async fn detokenize(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (tokens, special, held) = Fields::read(request, &state, |_, mut fields| {
        let tokens = match fields.take("tokens") {
            Some(Value::Array(list)) => ids("tokens", &list)?,
            _ => return Err(ApiError::field("tokens", "must be a list of token ids")),
        };
        Ok((tokens, !fields.flag_or("skip_special_tokens", true)?, fields.finish()?))
    })
    .await?;
    let tokenizer = Arc::clone(state.tokenizer("tokens")?);
    state.room()?.check_ids("tokens", tokens.len())?;
    let decode = move |_: Wanted<'_>| {
        let text = tokenizer.decode_with(&tokens, special);
        text.map_err(|error| ApiError::field("tokens", error))
    };
    let text = state.read_texts(&held, 0, decode).await?;
    Ok(Json(json!({"prompt": text})))
}
