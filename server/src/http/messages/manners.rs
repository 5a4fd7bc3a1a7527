//! What Anthropic's clients do and expect beside bodies: their key's header, and their form of errors.

use super::super::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

/// Takes a key from `x-api-key`, and gives errors of the paths of messages their form.
pub(crate) async fn adapt(mut request: Request, next: Next) -> Response {
    let is_of_messages = request.uri().path().starts_with("/v1/messages");
    take_key(request.headers_mut());
    let mut response = next.run(request).await;
    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = error.filter(|_| is_of_messages) {
        *response.body_mut() = Body::from(body(&error).to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}

/// A key that comes so is one as any other; `Authorization`, where there is one, goes before it.
fn take_key(headers: &mut HeaderMap) {
    let Some(key) =
        headers.get("x-api-key").filter(|_| !headers.contains_key(header::AUTHORIZATION))
    else {
        return;
    };
    if let Ok(value) = HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat()) {
        headers.insert(header::AUTHORIZATION, value);
    }
}

/// An error in Anthropic's form, with the field and the code that ours have.
pub(super) fn body(error: &ApiError) -> Value {
    let mut own = error.body()["error"].take();
    own["type"] = kind(error.status).into();
    json!({"type": "error", "error": own})
}

/// Anthropic's name of an error.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}
