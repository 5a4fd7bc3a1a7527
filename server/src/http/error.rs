//! Errors in OpenAI's shape.

use crate::structured::FieldError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use piecewise_runtime::engine::EngineError;
use piecewise_runtime::engine_thread::{Failure, SubmitError};
use serde_json::json;

/// What a client is told instead of an answer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    /// The field of the request that is at fault, where it is one.
    param: Option<String>,
    code: Option<&'static str>,
    message: String,
    retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, param: None, code: None, message: message.into(), retry_after: None }
    }

    /// The request as a whole can't be understood.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field has a value that it can't have.
    pub(crate) fn field(name: &str, message: impl std::fmt::Display) -> Self {
        let param = Some(name.to_owned());
        Self { param, ..Self::bad_request(format!("`{name}`: {message}")) }
    }

    /// The same of a field that another endpoint calls `from`.
    pub(crate) fn of_field(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
            self.message = self.message.replacen(&format!("`{from}`"), &format!("`{to}`"), 1);
        }
        self
    }

    /// A field that is known and not supported.
    pub(crate) fn unsupported(name: &str, instead: &str) -> Self {
        let code = Some("unsupported_parameter");
        Self { code, ..Self::field(name, format!("is not supported; {instead}")) }
    }

    /// A field that nobody knows.
    pub(crate) fn unknown(name: &str) -> Self {
        let shown: String = name.chars().take(80).collect();
        let message = "there is no such field; /openapi.json lists those that there are";
        Self { code: Some("unknown_parameter"), ..Self::field(&shown, message) }
    }

    pub(crate) fn no_key() -> Self {
        let message = "a valid API key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`";
        let code = Some("invalid_api_key");
        Self { code, ..Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message) }
    }

    /// What is asked does not go with what is under way.
    pub(crate) fn conflict(message: String) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message)
    }

    /// Who asks has a key that is no operator's.
    pub(crate) fn no_operator() -> Self {
        let message = "this is for operators, whose keys have `admin = true` in the file of keys";
        let code = Some("not_an_operator");
        Self { code, ..Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message) }
    }

    /// A page of another site asks by somebody's browser.
    pub(crate) fn foreign(message: &str) -> Self {
        let code = Some("foreign_site");
        Self { code, ..Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message) }
    }

    pub(crate) fn no_model(asked: &str, served: &str) -> Self {
        let asked: String = asked.chars().take(80).collect();
        let message = format!("there is no model `{asked}` here; this server has `{served}`");
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// The model that is served is of another kind.
    pub(crate) fn wrong_model(served: &str, has: &str) -> Self {
        let code = Some("model_not_supported");
        Self { code, ..Self::field("model", format!("`{served}` has {has}")) }
    }

    /// A text is longer than the model reads.
    pub(crate) fn too_long(field: &str, message: impl std::fmt::Display) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::field(field, message) }
    }

    pub(crate) fn no_path(path: &str) -> Self {
        let path: String = path.chars().take(80).collect();
        let message = format!("there is nothing at {path}; /openapi.json says what there is");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    pub(crate) fn wrong_method() -> Self {
        let message = "this path takes another method; /openapi.json says which";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    pub(crate) fn too_large(bytes: usize) -> Self {
        let message =
            format!("the body is larger than the {bytes} bytes that are taken (--max-body)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// The body has more values than are read.
    pub(crate) fn too_many_values(values: usize, most: usize) -> Self {
        let message = format!(
            "the body has {values} values, and at most {most} are read (--max-body-values)"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// Bodies take all the memory that they may.
    pub(crate) fn bodies_are_full(whose: &str, bytes: usize) -> Self {
        let message = format!(
            "{whose} on their way take the {bytes} bytes that they may (--max-body-memory); try again"
        );
        Self { code: Some("bodies_full"), retry_after: Some(1), ..Self::unavailable(message) }
    }

    /// A body alone would take more memory than those of one client may.
    pub(crate) fn body_never_fits(bytes: usize) -> Self {
        let message = format!(
            "the request takes more than the {bytes} bytes of memory that those of a client may \
             (--max-body-memory)"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// To read a text would take more memory than what is read for one client may.
    pub(crate) fn text_never_fits(field: &str, bytes: usize, most: usize) -> Self {
        let message = format!(
            "`{field}` has a text of {bytes} bytes, and there is memory to read {most}: a tokenizer takes up \
             to 180 bytes for each (--max-body-memory)"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// A client takes its answer too slowly, and what waits for it takes all the memory that it may.
    pub(crate) fn unread() -> Self {
        let message = "the answer was given up: what was not read of it takes the memory that requests \
                       and answers may (--max-body-memory); read faster, or ask for less at a time";
        Self { code: Some("answer_unread"), retry_after: Some(1), ..Self::unavailable(message) }
    }

    /// As much work of its kind waits as may.
    pub(crate) fn too_busy(whose: &str, waiting: usize, flag: &str) -> Self {
        let message = format!(
            "{waiting} {whose} wait for what is done before the model runs, which is the most \
             ({flag}); try again"
        );
        Self {
            code: Some("queue_full"),
            retry_after: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// A client has taken what it may, and may go on after so many seconds.
    pub(crate) fn too_many(message: String, seconds: u32) -> Self {
        Self {
            code: Some("rate_limit_exceeded"),
            retry_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// The body comes in an encoding that is not read.
    pub(crate) fn encoded(encoding: &str) -> Self {
        let encoding: String = encoding.chars().take(80).collect();
        let message =
            format!("a body of `Content-Encoding: {encoding}` is not read; send it plain");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    pub(crate) fn too_slow() -> Self {
        let message = "the body did not come in time (--client-timeout)";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    pub(crate) fn loading() -> Self {
        Self {
            retry_after: Some(2),
            ..Self::unavailable("the model is being loaded; /ready says when it is")
        }
    }

    /// The answer takes longer than it may.
    pub(crate) fn too_late(most: std::time::Duration) -> Self {
        let seconds = most.as_secs();
        let message =
            format!("there is no answer within {seconds} seconds (--request-timeout); try again");
        Self { retry_after: Some(1), ..Self::unavailable(message) }
    }

    /// What was to answer has ended.
    pub(crate) fn stopped() -> Self {
        Self::unavailable("the model was stopped before the request ended")
    }

    /// The engine has no memory until it is woken.
    pub(crate) fn asleep(message: impl Into<String>) -> Self {
        Self { code: Some("asleep"), retry_after: Some(5), ..Self::unavailable(message) }
    }

    /// Every connection that there may be has a request.
    pub(crate) fn crowded() -> Self {
        let message =
            "as many clients as the server takes are connected (--max-connections); try again";
        Self {
            code: Some("too_many_connections"),
            retry_after: Some(1),
            ..Self::unavailable(message)
        }
    }

    fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// `{"error": {..}}`.
    pub(crate) fn body(&self) -> serde_json::Value {
        let Self { kind, param, code, message, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::field(&error.field, error.message)
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> Self {
        let field = match error {
            EngineError::EmptyPrompt
            | EngineError::IdOutOfRange { .. }
            | EngineError::RowsPlace { .. } => "prompt",
            EngineError::TooLong { .. } => {
                return Self::too_long("prompt", error);
            }
            EngineError::Parameter { parameter, .. } => parameter,
            _ => return Self::internal(error.to_string()),
        };
        Self::field(field, error)
    }
}

impl From<&Failure> for ApiError {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Refused(error) => Self::from(&**error),
            Failure::Stopped => Self::unavailable(failure.to_string()),
            Failure::Asleep => Self::asleep(failure.to_string()),
            _ => Self::internal(failure.to_string()),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Full { .. } => Self {
                retry_after: Some(1),
                code: Some("queue_full"),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            },
            SubmitError::TooMany { .. } => Self::field("prompt", message),
            SubmitError::ShuttingDown => {
                Self { retry_after: Some(5), ..Self::unavailable(message) }
            }
            SubmitError::Asleep => Self::asleep(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        // Whoever has another form for errors writes it anew.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_past_a_bound_is_told_its_setting() {
        let late = std::time::Duration::from_secs(5);
        for (error, status, setting) in [
            (ApiError::too_large(8), 413, "--max-body)"),
            (ApiError::too_many_values(9, 8), 413, "--max-body-values)"),
            (ApiError::body_never_fits(8), 413, "--max-body-memory)"),
            (ApiError::bodies_are_full("requests", 8), 503, "--max-body-memory)"),
            (ApiError::text_never_fits("prompt", 9, 8), 413, "--max-body-memory)"),
            (ApiError::unread(), 503, "--max-body-memory)"),
            (ApiError::too_busy("requests", 8, "--max-waiting-texts"), 429, "--max-waiting-texts)"),
            (ApiError::too_slow(), 408, "--client-timeout)"),
            (ApiError::too_late(late), 503, "--request-timeout)"),
            (ApiError::crowded(), 503, "--max-connections)"),
            (SubmitError::Full { live: 9, bound: 8 }.into(), 429, "--max-queue)"),
            (SubmitError::TooMany { count: 9, bound: 8 }.into(), 400, "--max-queue)"),
        ] {
            assert_eq!(error.status.as_u16(), status, "{error:?}");
            assert!(error.message.contains(setting), "{error:?}");
        }
    }
}
