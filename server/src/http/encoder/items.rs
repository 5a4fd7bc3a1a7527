//! Texts and ids of requests, and what the encoder makes of them.

use super::super::body::Held;
use super::super::error::ApiError;
use super::super::fields::{Field, Fields, field, ids, schema};
use super::super::state::{Room, State, longest, needed};
use super::served::EncoderState;
use crate::structured::Wanted;
use axum::extract::Request;
use piecewise::encoding::{ItemError, TextItem};
use serde_json::Value;
use std::sync::Arc;

/// The fields that every request may have.
pub(crate) const FIELDS: &[Field] = &[
    field("user", schema::TEXT, "Taken, and not looked at."),
    field("priority", schema::WHOLE, "Taken, and not looked at: all are served in turn."),
    field("request_id", schema::TEXT, "Taken, and not looked at."),
];

/// What `take` takes of the fields of a request to the served model, but for its name.
pub(super) async fn read<R: Send + 'static>(
    request: Request,
    state: &Arc<State>,
    take: impl FnOnce(&State, Fields) -> Result<R, ApiError> + Send + 'static,
) -> Result<R, ApiError> {
    let take = |state: &State, mut fields: Fields| {
        // Whose it is, and how urgent: nothing depends on them.
        fields.ignore(&["user", "priority", "request_id"]);
        fields.refuse(&[
            ("truncate_prompt_tokens", Value::Null, "shorten the text before it is sent"),
            ("truncation_side", Value::Null, "shorten the text before it is sent"),
        ])?;
        take(state, fields)
    };
    Fields::read(request, state, take).await
}

/// What is to be embedded, as it was given.
pub(super) enum Given {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl Given {
    /// A text, texts, token ids, or lists of token ids, of which there may be so many.
    pub(super) fn of(field: &'static str, value: Value, most: usize) -> Result<Self, ApiError> {
        let bad =
            || ApiError::field(field, "must be a text, texts, token ids, or lists of token ids");
        match value {
            Value::String(text) => Ok(Self::Texts(vec![text])),
            Value::Array(list) => match list.first() {
                None => Err(ApiError::field(field, "is an empty list; give a text at least")),
                _ if list.len() > most && !list[0].is_number() => {
                    Err(too_many(field, list.len(), most))
                }
                Some(Value::String(_)) => texts(field, list, most).map(Self::Texts),
                Some(Value::Number(_)) => Ok(Self::Ids(vec![ids(field, &list)?])),
                Some(Value::Array(_)) => {
                    let of = |value: &Value| ids(field, value.as_array().ok_or_else(bad)?);
                    list.iter().map(of).collect::<Result<_, _>>().map(Self::Ids)
                }
                Some(_) => Err(bad()),
            },
            _ => Err(bad()),
        }
    }
}

/// Reads texts off the threads that others wait for; ids are items already.
pub(super) async fn items(
    state: &State,
    encoder: &EncoderState,
    held: &Held,
    (field, given): (&'static str, Given),
    special: bool,
) -> Result<Vec<TextItem>, ApiError> {
    let item = |ids| TextItem { ids, token_types: Vec::new() };
    let texts = match given {
        Given::Ids(lists) => return Ok(lists.into_iter().map(item).collect()),
        Given::Texts(texts) => texts,
    };
    let tokenizer = Arc::clone(needed(&encoder.tokenizer, field)?);
    let name = place(field, texts.len());
    check_texts(encoder.room, &texts, &name)?;
    let (room, longest) = (encoder.room, longest(&texts));
    let encode = move |is_wanted: Wanted<'_>| {
        let encode = |(i, text): (usize, &String)| {
            room.encode(&tokenizer, &name(i), (text, special), is_wanted).map(item)
        };
        let wanted = texts.iter().enumerate().take_while(|_| is_wanted());
        wanted.map(encode).collect::<Result<_, ApiError>>()
    };
    state.read_texts(held, longest, encode).await
}

/// Refuses texts that are too long for the model by their bytes.
pub(super) fn check_texts(
    room: Room,
    texts: &[String],
    name: &dyn Fn(usize) -> String,
) -> Result<(), ApiError> {
    texts.iter().enumerate().try_for_each(|(i, text)| room.check_text(&name(i), text))
}

/// A list of texts, so many at most, each maybe as `{"text": ..}`.
pub(super) fn texts(field: &str, list: Vec<Value>, most: usize) -> Result<Vec<String>, ApiError> {
    if list.len() > most {
        return Err(too_many(field, list.len(), most));
    }
    let text = |(i, value): (usize, Value)| match value {
        Value::String(text) => Ok(text),
        Value::Object(mut object) => match object.remove("text") {
            Some(Value::String(text)) if object.is_empty() => Ok(text),
            _ => {
                let what = object.keys().next().map_or("text", String::as_str);
                let name = format!("{field}[{i}].{what}");
                Err(ApiError::unsupported(&name, "this model reads texts: give `text` alone"))
            }
        },
        _ => Err(ApiError::field(&format!("{field}[{i}]"), "must be a text")),
    };
    list.into_iter().enumerate().map(text).collect()
}

fn too_many(field: &str, count: usize, most: usize) -> ApiError {
    let message = format!("has {count} texts, and at most {most} are taken (--max-texts)");
    ApiError::field(field, message)
}

/// The first output of each item, in their order; `name` says which field brought the `i`th of how
/// many. A client that is gone waits no more, and its items are left out.
pub(super) async fn encode(
    state: &State,
    encoder: &EncoderState,
    held: &Held,
    items: Vec<TextItem>,
    field: &(dyn Fn(usize) -> String + Sync),
) -> Result<Vec<Vec<f32>>, ApiError> {
    let (sender, outputs) = tokio::sync::oneshot::channel();
    // Who has gone wants no outputs.
    let sink = Box::new(move |outputs| drop(sender.send(outputs)));
    let client = held.client();
    let _charge = client.charge(tokens(&items) as u64, 0)?;
    let ticket = encoder.handle.submit(client.of_engine(), items, sink)?;
    let outputs = match state.limits.request_time {
        None => outputs.await,
        Some(most) => {
            let in_time = tokio::time::timeout(most, outputs).await;
            in_time.map_err(|_| ApiError::too_late(most))?
        }
    };
    drop(ticket);
    let outputs = outputs.map_err(|_| ApiError::stopped())?;
    let first = |(i, outputs): (usize, Result<Vec<Vec<f32>>, ItemError>)| match outputs {
        Ok(outputs) => Ok(outputs.into_iter().next().unwrap_or_default()),
        Err(error) => Err(refused(&field(i), &error)),
    };
    outputs.into_iter().enumerate().map(first).collect()
}

fn refused(field: &str, error: &ItemError) -> ApiError {
    match error {
        ItemError::TooLong { .. } | ItemError::LargerThanAStep { .. } => {
            ApiError::too_long(field, error)
        }
        ItemError::Tokens(_) | ItemError::Invalid { .. } => ApiError::field(field, error),
        ItemError::NotFinite { .. } => ApiError::internal(format!("{field}: {error}")),
        _ => ApiError::internal(format!(
            "the encoder failed: {error}; the request can be tried again"
        )),
    }
}

/// How the place of an item is named in a field that brought `count`.
pub(super) fn place(field: &'static str, count: usize) -> impl Fn(usize) -> String + Sync {
    move |i| match count {
        1 => field.to_owned(),
        _ => format!("{field}[{i}]"),
    }
}

fn tokens(items: &[TextItem]) -> usize {
    items.iter().map(|item| item.ids.len()).sum()
}

/// The tokens of items, and what a request took of them, as OpenAI shows it.
pub(super) fn usage(items: &[TextItem]) -> Value {
    let tokens = tokens(items);
    serde_json::json!({"prompt_tokens": tokens, "total_tokens": tokens})
}
