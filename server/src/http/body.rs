//! The body of a request, bounded in size and time.

use super::error::ApiError;
use super::state::Limits;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use futures_util::StreamExt;

/// The whole body, unless it is longer than `limits` let it be.
pub(crate) async fn read(request: Request, limits: &Limits) -> Result<Vec<u8>, ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limits.body_bytes) {
        return Err(ApiError::too_large(limits.body_bytes));
    }
    let whole = collect(request.into_body(), limits.body_bytes);
    let in_time = tokio::time::timeout(limits.body_time, whole).await;
    in_time.map_err(|_| ApiError::too_slow())?
}

async fn collect(body: Body, bound: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::bad_request(format!("the body can't be read to its end: {error}"))
        })?;
        if bytes.len() + chunk.len() > bound {
            return Err(ApiError::too_large(bound));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
