//! `/v1/embeddings`.

use super::super::aside::aside;
use super::super::body::Held;
use super::super::error::ApiError;
use super::super::fields::{Field, Fields, MODEL, field, schema};
use super::super::state::{State, now};
use super::items::{Given, encode, items, place, read, usage};
use super::served::{EncoderKind, Matryoshka};
use axum::extract::{self, Request};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The fields of `/v1/embeddings`.
pub(crate) const FIELDS: &[Field] = &[
    MODEL,
    field(
        "input",
        schema::TEXTS_OR_IDS,
        "A text, texts, token ids, or lists of token ids; at most 2048 of them, or as `--max-texts` says.",
    ),
    field(
        "encoding_format",
        r#"{"enum":["float","base64"],"default":"float"}"#,
        "Vectors as lists of numbers, or as their f32, little-endian, in Base64.",
    ),
    field(
        "dimensions",
        schema::COUNT,
        "So many first elements of each vector, of a model that was trained for it.",
    ),
    field(
        "add_special_tokens",
        schema::FLAG_THAT_IS_SET,
        "Whether the tokenizer's own special tokens are added to texts.",
    ),
];

#[derive(Serialize)]
struct Answer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Datum>,
    usage: Value,
}

#[derive(Serialize)]
struct Datum {
    object: &'static str,
    index: usize,
    embedding: Embedding,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Embedding {
    Float(Vec<f32>),
    Base64(String),
}

/// What a request asks for.
struct Asked {
    is_base64: bool,
    dimensions: usize,
    /// Whether vectors of length 1 lose elements.
    shortens: bool,
    special: bool,
    input: Given,
    held: Held,
}

impl Asked {
    fn take(state: &State, mut fields: Fields) -> Result<Self, ApiError> {
        let EncoderKind::Embeddings { width, normalized, shortened } = &state.encoder()?.kind
        else {
            let has = "scores of pairs and no embeddings; ask /v1/score or /v1/rerank";
            return Err(ApiError::wrong_model(state.name(), has));
        };
        let is_base64 = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => {
                return Err(ApiError::field("encoding_format", "must be `float` or `base64`"));
            }
        };
        let dimensions = match fields.whole("dimensions", 1, i64::MAX)? {
            None => *width,
            Some(asked) => dimensions(asked as u64, *width, shortened)?,
        };
        let special = fields.flag_or("add_special_tokens", true)?;
        let input = fields.take("input");
        fields.refuse(&[("messages", Value::Null, "give texts as `input`")])?;
        let held = fields.finish()?;
        let input = input.ok_or_else(|| ApiError::field("input", "is missing"))?;
        let input = Given::of("input", input, state.limits.texts)?;
        let shortens = dimensions < *width && *normalized;
        Ok(Self { is_base64, dimensions, shortens, special, input, held })
    }
}

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Response, ApiError> {
    let encoder = state.encoder()?;
    let asked = read(request, &state, Asked::take).await?;
    let Asked { is_base64, dimensions, shortens, special, input, held } = asked;
    let items = items(&state, encoder, &held, ("input", input), special).await?;
    let (usage, count) = (usage(&items), items.len());
    let vectors = encode(&state, encoder, &held, items, &place("input", count)).await?;
    let (id, model) = (super::super::ids::next("embd"), state.name().to_owned());
    let body = aside(move || {
        let data = vectors.into_iter().enumerate().map(|(index, mut vector)| {
            vector.truncate(dimensions);
            if shortens {
                super::similarity::normalize(&mut vector);
            }
            let embedding = match is_base64 {
                false => Embedding::Float(vector),
                true => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    Embedding::Base64(BASE64_STANDARD.encode(bytes))
                }
            };
            Datum { object: "embedding", index, embedding }
        });
        let (object, created, data) = ("list", now(), data.collect());
        let answer = Answer { id, object, created, model, data, usage };
        serde_json::to_vec(&answer).map_err(|error| ApiError::internal(error.to_string()))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], body.await?).into_response())
}

fn dimensions(asked: u64, width: usize, shortened: &Matryoshka) -> Result<usize, ApiError> {
    let refused = |message: String| Err(ApiError::field("dimensions", message));
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    match shortened {
        _ if asked == width => Ok(width),
        _ if asked > width => refused(format!("{asked}, but the model's vectors have {width}")),
        Matryoshka::Any => Ok(asked),
        Matryoshka::OneOf(taken) if taken.contains(&asked) => Ok(asked),
        Matryoshka::OneOf(taken) => refused(format!("must be one of {taken:?}")),
        Matryoshka::No => refused(format!(
            "the model's vectors have {width}, and it does not say that it was trained to have them \
             shortened (`is_matryoshka` or `matryoshka_dimensions` of config.json); `--matryoshka` \
             says so in its place"
        )),
    }
}
