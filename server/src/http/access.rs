//! Who may ask, and what was asked.

use super::client::Connected;
use super::error::ApiError;
use super::ids;
use super::state::State;
use axum::extract::{self, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;

/// Refuses requests without a key, where keys are asked for, and tells others who asks.
pub(crate) async fn admit(
    extract::State(state): extract::State<Arc<State>>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let from = request.extensions().get::<Connected>();
    match state.keys.admit(given, from.map(|from| from.address)) {
        Some(client) => {
            let client = client.by(from.map(|from| Arc::clone(&from.leave)));
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        None => ApiError::no_key().into_response(),
    }
}

/// What is asked every few seconds by who watches a server.
const PROBES: [&str; 4] = ["/health", "/metrics", "/ping", "/ready"];
/// Bytes of a path that are logged, and of a method.
const MOST_OF_PATH: usize = 200;
const MOST_OF_METHOD: usize = 20;

/// The beginning of what a client wrote, however long that is.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A time as logs have it: in milliseconds, to the microsecond.
pub(super) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Gives each request a span, of its trace where it has one, logs it, and names the answer. What is
/// generated is logged once more, in the same span, when it has ended. Probes and scrapes are for debugging.
pub(crate) async fn log(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = ids::next("req");
    let (trace, parent) = parent_of(request.headers()).unwrap_or(("-", "-"));
    let span =
        tracing::info_span!(target: "piecewise::access", "request", request = id, trace, parent);
    let mut response = next.run(request).instrument(span.clone()).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", value);
    }
    let _within = span.enter();
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                target: "piecewise::access",
                method = %cut(method.as_str(), MOST_OF_METHOD),
                path = cut(&path, MOST_OF_PATH),
                status = response.status().as_u16(),
                milliseconds = milliseconds(started.elapsed()),
            )
        };
    }
    match PROBES.contains(&&*path) {
        true => line!(debug),
        false => line!(info),
    }
    response
}

/// The trace that a request belongs to and the span that asked for it, by its `traceparent`: 32 and 16
/// hexadecimal digits, not all 0.
fn parent_of(headers: &HeaderMap) -> Option<(&str, &str)> {
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
    let is_hex = |text: &&str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_set = |text: &&str| text.bytes().any(|b| b != b'0');
    parts.next().filter(|version| is_hex(version, 2) && *version != "ff")?;
    let trace = parts.next().filter(|trace| is_hex(trace, 32) && is_set(trace))?;
    let parent = parts.next().filter(|parent| is_hex(parent, 16) && is_set(parent))?;
    parts.next().filter(|flags| is_hex(flags, 2))?;
    Some((trace, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_decimals() {
        let shown = [0, 222_284_999, 1_500, 1_000_000_499].map(Duration::from_nanos);
        let shown = shown.map(|time| milliseconds(time).to_string());
        assert_eq!(shown, ["0", "222.285", "0.002", "1000"]);
    }

    #[test]
    fn what_a_client_wrote_is_cut_between_characters() {
        for (text, most, shown) in
            [("GET", 20, "GET"), ("GETTING", 3, "GET"), ("aé🦀", 4, "aé"), ("é", 1, "")]
        {
            assert_eq!(cut(text, most), shown, "{text}");
        }
    }

    #[test]
    fn a_trace_parent_is_taken_or_left() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_str(text).unwrap());
            parent_of(&headers).map(|(trace, parent)| format!("{trace} {parent}"))
        };
        let found = of(&format!("00-{trace}-00f067aa0ba902b7-01"));
        assert_eq!(found, Some(format!("{trace} 00f067aa0ba902b7")));
        for bad in [
            "",
            "00",
            "00-1-2-3",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
