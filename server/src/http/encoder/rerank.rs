//! `/v1/rerank`: documents by how well they answer a query, in the shape that Jina and Cohere have.

use super::super::body::Held;
use super::super::error::ApiError;
use super::super::fields::{Field, Fields, MODEL, field, schema};
use super::super::state::State;
use super::items::{read, texts};
use super::similarity::{Pairs, USE_ACTIVATION, scores};
use axum::Json;
use axum::extract::{self, Request};
use serde_json::{Value, json};
use std::sync::Arc;

/// The fields of `/v1/rerank`.
pub(crate) const FIELDS: &[Field] = &[
    MODEL,
    field("query", schema::TEXT, "What is asked."),
    field(
        "documents",
        r#"{"type":"array","items":{"anyOf":[{"type":"string"},{"type":"object","properties":{"text":{"type":"string"}}}]}}"#,
        "Texts, also as `{\"text\": ..}`; at most 2048, or as `--max-texts` says.",
    ),
    field("top_n", schema::COUNT_OR_NONE, "So many of the best; 0 is all."),
    field("return_documents", schema::FLAG_THAT_IS_SET, "Whether results have the texts."),
    USE_ACTIVATION,
];

/// What a request asks for.
struct Asked {
    query: String,
    documents: Vec<String>,
    most: usize,
    with_documents: bool,
    /// Whether a cross-encoder's logits stay what they are.
    raw: bool,
    held: Held,
}

impl Asked {
    fn take(state: &State, mut fields: Fields) -> Result<Self, ApiError> {
        let query = fields.text("query")?.ok_or_else(|| ApiError::field("query", "is missing"))?;
        let documents = match fields.take("documents") {
            None => return Err(ApiError::field("documents", "is missing")),
            Some(Value::Array(list)) if !list.is_empty() => {
                texts("documents", list, state.limits.texts)?
            }
            Some(_) => {
                return Err(ApiError::field("documents", "must be a list of at least one text"));
            }
        };
        let most = match fields.whole("top_n", 0, i64::MAX)? {
            None | Some(0) => documents.len(),
            Some(most) => usize::try_from(most).unwrap_or(usize::MAX).min(documents.len()),
        };
        let with_documents = fields.flag_or("return_documents", true)?;
        let raw = !fields.flag_or("use_activation", true)?;
        let whole = "each document is read whole: cut it before it is sent";
        fields.refuse(&[
            ("max_tokens_per_doc", Value::Null, whole),
            ("max_chunks_per_doc", Value::Null, whole),
            ("rank_fields", Value::Null, "give each document's text as it is to be read"),
        ])?;
        let held = fields.finish()?;
        Ok(Self { query, documents, most, with_documents, raw, held })
    }
}

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let encoder = state.encoder()?;
    let Asked { query, documents, most, with_documents, raw, held } =
        read(request, &state, Asked::take).await?;
    let kept = with_documents.then(|| documents.clone());
    let pairs = Pairs { fields: ["query", "documents"], texts: [vec![query], documents] };
    let (scores, usage) = scores(&state, encoder, held, pairs, raw).await?;
    let mut ranked: Vec<usize> = (0..scores.len()).collect();
    // Of equals, the first given comes first.
    ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let result = |&index: &usize| {
        let mut result = json!({"index": index, "relevance_score": scores[index]});
        if let Some(documents) = &kept {
            result["document"] = json!({"text": documents[index]});
        }
        result
    };
    Ok(Json(json!({
        "id": super::super::ids::next("rerank"),
        "model": state.name(),
        "results": ranked[..most].iter().map(result).collect::<Vec<_>>(),
        "usage": usage,
    })))
}
