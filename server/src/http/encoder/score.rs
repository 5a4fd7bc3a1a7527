//! `/v1/score`: how well texts go together, pair by pair.

use super::super::error::ApiError;
use super::super::fields::{Field, Fields, MODEL, field, schema};
use super::super::state::{State, now};
use super::items::{read, texts};
use super::similarity::{Pairs, USE_ACTIVATION, scores};
use axum::Json;
use axum::extract::{self, Request};
use serde_json::{Value, json};
use std::sync::Arc;

/// The fields of `/v1/score`.
pub(crate) const FIELDS: &[Field] = &[
    MODEL,
    field(
        "text_1",
        schema::TEXT_OR_TEXTS,
        "A text, which goes with every one of `text_2`, or as many as those.",
    ),
    field("text_2", schema::TEXT_OR_TEXTS, "A text or texts."),
    field("queries", schema::TEXT_OR_TEXTS, "Another name of `text_1`."),
    field("documents", schema::TEXT_OR_TEXTS, "Another name of `text_2`."),
    USE_ACTIVATION,
];

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let encoder = state.encoder()?;
    let (sides, raw, held) = read(request, &state, |state, mut fields| {
        let most = state.limits.texts;
        for (other, name) in [("queries", "text_1"), ("documents", "text_2")] {
            fields.rename(other, name);
        }
        let raw = !fields.flag_or("use_activation", true)?;
        let sides = [side(&mut fields, "text_1", most)?, side(&mut fields, "text_2", most)?];
        Ok((sides, raw, fields.finish()?))
    })
    .await?;
    let [first, second] = &sides;
    if first.len() != 1 && first.len() != second.len() {
        let (first, second) = (first.len(), second.len());
        let message = format!("has {first} texts for {second} of `text_2`; give one, or as many");
        return Err(ApiError::field("text_1", message));
    }
    let pairs = Pairs { fields: ["text_1", "text_2"], texts: sides };
    let (scores, usage) = scores(&state, encoder, held, pairs, raw).await?;
    let datum = |(index, score)| json!({"index": index, "object": "score", "score": score});
    Ok(Json(json!({
        "id": super::super::ids::next("score"),
        "object": "list",
        "created": now(),
        "model": state.name(),
        "data": scores.into_iter().enumerate().map(datum).collect::<Vec<_>>(),
        "usage": usage,
    })))
}

fn side(fields: &mut Fields, name: &'static str, most: usize) -> Result<Vec<String>, ApiError> {
    match fields.take(name) {
        None => Err(ApiError::field(name, "is missing")),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(list)) if !list.is_empty() => texts(name, list, most),
        Some(_) => Err(ApiError::field(name, "must be a text, or a list of at least one")),
    }
}
