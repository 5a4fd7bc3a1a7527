//! The body of a request, bounded in size and time, and all bodies in memory, and answers with them.

use super::client::Client;
use super::error::ApiError;
use super::state::State;
use crate::seldom::Seldom;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use piecewise_runtime::config::ServerConfig;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of each body that count for nothing, so that small requests are read however many large ones
/// there are.
const SMALL: usize = ServerConfig::SMALL_BODY as usize;
/// Bytes of a body that are read at once; more of them would keep the streams of others waiting.
pub(super) const LARGEST_HERE: usize = 32 << 10;
/// Bytes of memory that a value of a body takes: that of `serde_json` and its place in a list or an object.
const OF_VALUE: usize = ServerConfig::BODY_VALUE as usize;
/// Bytes of memory that a log-probability takes until its answer is sent: a number, the text of its token,
/// and both as they are written.
const OF_LOGPROB: usize = 256;
/// Tokens of the texts of a request that take long to read.
const MANY_TOKENS: usize = 1 << 18;
/// Bytes of memory that a token of a text takes: an id and a type.
const OF_TOKEN: usize = 8;

/// What all bodies may take of memory, from their first bytes until their requests are on their way, and
/// answers until they are taken; three quarters of it those of one client.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory {
    taken: Arc<Mutex<Taken>>,
    bytes: usize,
}

/// Bytes, in all and of each client.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<u64, usize>,
    given_up: Seldom,
}

impl BodyMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { taken: Arc::default(), bytes }
    }

    /// What those of one client may take.
    pub(crate) fn of_one(&self) -> usize {
        self.bytes - self.bytes / 4
    }

    pub(super) fn hold(&self, client: Client) -> Held {
        Held { memory: self.clone(), client, bytes: 0, is_large: false }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that holds it panics.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of one body, or of an answer; given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Held {
    memory: BodyMemory,
    /// Who sent it, or asked for it.
    client: Client,
    bytes: usize,
    is_large: bool,
}

/// What of so many bytes counts.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(SMALL)
}

impl Held {
    /// Who sent the body.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the body takes long to read.
    pub(crate) fn is_large(&self) -> bool {
        self.is_large
    }

    /// Gives back what the body took, and takes so many bytes for its answer.
    pub(crate) fn for_answer(self, bytes: usize) -> Result<Self, ApiError> {
        let mut held = self.another();
        drop(self);
        held.grow(bytes)?;
        Ok(held)
    }

    /// One of the same client that has taken nothing.
    pub(crate) fn another(&self) -> Self {
        self.memory.hold(self.client.clone())
    }

    /// Takes memory for so many log-probabilities of an answer that is being made.
    pub(crate) fn take_logprobs(&mut self, count: usize) -> Result<(), ApiError> {
        self.grow(count.saturating_mul(OF_LOGPROB))
    }

    /// Takes memory for so many tokens that are read of its texts; what has many takes long.
    pub(crate) fn take_tokens(&mut self, count: usize) -> Result<(), ApiError> {
        self.is_large |= count > MANY_TOKENS;
        self.grow(count.saturating_mul(OF_TOKEN))
    }

    /// Bytes that it has taken.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it has taken more than every request may.
    pub(crate) fn is_heavy(&self) -> bool {
        counted(self.bytes) > 0
    }

    /// Takes so many bytes more.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let grown = self.bytes.saturating_add(bytes);
        let more = counted(grown) - counted(self.bytes);
        if more > 0 {
            let (most, of_one) = (self.memory.bytes, self.memory.of_one());
            if counted(grown) > of_one {
                return Err(ApiError::body_never_fits(of_one));
            }
            let mut taken = self.memory.lock();
            let of_client = taken.of.get(&self.client.id()).copied().unwrap_or(0);
            if more > most.saturating_sub(taken.all) {
                return Err(ApiError::bodies_are_full("requests", most));
            }
            if more > of_one.saturating_sub(of_client) {
                return Err(ApiError::bodies_are_full("requests of yours", of_one));
            }
            taken.all += more;
            *taken.of.entry(self.client.id()).or_default() += more;
        }
        self.bytes = grown;
        Ok(())
    }

    /// Closes the connection of who asked: there is no memory for what it has not read of its answer.
    pub(crate) fn give_up(&self) {
        let bytes = self.bytes;
        self.memory.lock().given_up.tell(|count| {
            tracing::warn!(
                "{count} answers were given up, the last with {bytes} bytes that its client had not read: \
                 there is no memory for more (--max-body-memory)"
            );
        });
        self.client.leave();
    }

    /// Gives so many of its bytes back.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let left = self.bytes.saturating_sub(bytes);
        let bytes = counted(self.bytes) - counted(left);
        self.bytes = left;
        if bytes > 0 {
            let mut taken = self.memory.lock();
            taken.all -= bytes;
            if let Some(of_client) = taken.of.get_mut(&self.client.id()) {
                *of_client -= bytes;
                if *of_client == 0 {
                    taken.of.remove(&self.client.id());
                }
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// The whole body, unless it is longer than it may be.
pub(crate) async fn read(request: Request, state: &State) -> Result<(Vec<u8>, Held), ApiError> {
    let bound = state.limits.body_bytes;
    check_encoding(request.headers())?;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > bound) {
        return Err(ApiError::too_large(bound));
    }
    let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
    let whole = collect(request.into_body(), bound, state.bodies.hold(client));
    let in_time = tokio::time::timeout(state.limits.body_time, whole).await;
    in_time.map_err(|_| ApiError::too_slow())?
}

/// Each header of the name counts, and each encoding of a list.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    for header in headers.get_all(header::CONTENT_ENCODING) {
        let encodings = String::from_utf8_lossy(header.as_bytes());
        let is_plain = |encoding: &str| encoding.trim().eq_ignore_ascii_case("identity");
        if !encodings.split(',').all(is_plain) {
            return Err(ApiError::encoded(&encodings));
        }
    }
    Ok(())
}

async fn collect(body: Body, bound: usize, mut held: Held) -> Result<(Vec<u8>, Held), ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::bad_request(format!("the body can't be read to its end: {error}"))
        })?;
        if bytes.len() + chunk.len() > bound {
            return Err(ApiError::too_large(bound));
        }
        held.grow(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    held.is_large = bytes.len() > LARGEST_HERE;
    Ok((bytes, held))
}

/// Refuses a JSON text of more than `most` values, and takes memory for those that it has.
pub(crate) fn check_values(json: &[u8], most: usize, held: &mut Held) -> Result<(), ApiError> {
    let values = values(json);
    match values > most {
        true => Err(ApiError::too_many_values(values, most)),
        false => held.grow(values.saturating_mul(OF_VALUE)),
    }
}

/// Bytes of memory that values take.
pub(crate) fn memory(values: &[Value]) -> usize {
    let of = |value: &Value| match value {
        Value::String(text) => text.len(),
        Value::Array(list) => memory(list),
        Value::Object(fields) => {
            let of_field = |(name, value): (&String, &Value)| {
                OF_VALUE + name.len() + memory(std::slice::from_ref(value))
            };
            fields.iter().map(of_field).sum()
        }
        _ => 0,
    };
    values.iter().map(|value| OF_VALUE + of(value)).sum()
}

/// How many values a JSON text has at most, its names among them: each but the first of a list or an object
/// stands behind a comma, and each behind a colon has a name.
fn values(json: &[u8]) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (1, false, false);
    for &byte in json {
        match (is_text, byte) {
            _ if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b',' | b':' | b'[' | b'{') => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_before_they_are_read() {
        for (json, count) in [
            (r#"1"#, 1),
            (r#""a,[{\",:""#, 1),
            (r#"[1, 2, 3]"#, 4),
            (r#"{"a": 1, "b": [true]}"#, 6),
            (r#"[{"":0},{"":0}]"#, 7),
            ("", 1),
        ] {
            assert_eq!(values(json.as_bytes()), count, "{json}");
        }
        let mut held = BodyMemory::new(1 << 20).hold(Client::default());
        let list = format!("[{}1]", "1,".repeat(999));
        check_values(list.as_bytes(), 1001, &mut held).unwrap();
        let error = check_values(list.as_bytes(), 1000, &mut held).unwrap_err();
        assert!(error.body().to_string().contains("1001 values"), "{error:?}");
    }

    #[test]
    fn values_that_are_there_take_what_they_took_as_text() {
        let json = r#"[{"ab": [1, "xy"], "": null}, true, {}]"#;
        let read: Vec<Value> = serde_json::from_str(json).unwrap();
        assert_eq!(memory(&read), 9 * OF_VALUE + 4, "the list around them is no value of theirs");
        assert!(values(json.as_bytes()) > 9);
    }

    #[test]
    fn a_body_is_large_by_its_bytes_however_many_values_they_are() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (bytes, is_large) in [(LARGEST_HERE, false), (LARGEST_HERE + 1, true)] {
            let list = format!("[{}1]", "1,".repeat(bytes / 2 - 2)) + &" ".repeat(bytes % 2 + 1);
            assert_eq!(list.len(), bytes);
            let held = BodyMemory::new(8 << 20).hold(Client::default());
            let collected = runtime.block_on(collect(Body::from(list), 1 << 20, held));
            let (list, mut held) = collected.unwrap();
            check_values(&list, 1 << 20, &mut held).unwrap();
            assert_eq!(held.is_large(), is_large, "{bytes}");
        }
    }

    #[test]
    fn bodies_share_what_memory_there_is_and_small_ones_are_read_always() {
        let memory = BodyMemory::new(1 << 20);
        let hold = |last| memory.hold(Client::at(Some([10, 0, 0, last].into())));
        let (mut first, mut second) = (hold(1), hold(2));
        first.grow(SMALL + (600 << 10)).unwrap();
        second.grow(SMALL).unwrap();
        second.grow(400 << 10).unwrap();
        second.grow(100 << 10).unwrap_err();
        let mut third = hold(3);
        third.grow(SMALL).unwrap();
        third.grow(25 << 10).unwrap_err();
        drop(first);
        let mut other = hold(3);
        other.grow(SMALL + (600 << 10)).unwrap();
        assert_eq!(memory.lock().all, 1000 << 10);
        other.shrink(300 << 10);
        assert_eq!((memory.lock().all, other.bytes()), (700 << 10, SMALL + (300 << 10)));
        other.shrink(SMALL + (300 << 10));
        assert_eq!((memory.lock().all, other.bytes()), (400 << 10, 0));
        drop((second, third, other));
        let taken = memory.lock();
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }

    /// However often it were tried again.
    #[test]
    fn a_body_that_can_never_fit_is_too_large() {
        let memory = BodyMemory::new(1 << 20);
        let mut held = memory.hold(Client::default());
        held.grow(SMALL + (768 << 10)).unwrap();
        let error = held.grow(1).unwrap_err();
        assert_eq!(error.status, axum::http::StatusCode::PAYLOAD_TOO_LARGE);
        assert!(error.body().to_string().contains("--max-body-memory"), "{error:?}");
        let mut held = BodyMemory::new(0).hold(Client::default());
        held.grow(SMALL).unwrap();
        assert_eq!(held.grow(1).unwrap_err().status, axum::http::StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn bodies_come_in_no_encoding_wherever_it_is_said() {
        let check = |encodings: &[&'static str]| {
            let header = |text| (header::CONTENT_ENCODING, header::HeaderValue::from_static(text));
            let mut headers = HeaderMap::new();
            encodings.iter().map(|text| header(text)).for_each(|(name, value)| {
                headers.append(name, value);
            });
            check_encoding(&headers).map_err(|error| error.status.as_u16())
        };
        for plain in [&[][..], &["identity"], &["Identity", "identity"], &["identity, identity"]] {
            assert_eq!(check(plain), Ok(()), "{plain:?}");
        }
        for encoded in
            [&["gzip"][..], &["identity", "gzip"], &["identity, br"], &["gzip", "identity"]]
        {
            assert_eq!(check(encoded), Err(415), "{encoded:?}");
        }
    }

    #[test]
    fn one_client_leaves_some_of_the_memory_to_others() {
        let memory = BodyMemory::new(1 << 20);
        let hold = |last| memory.hold(Client::at(Some([10, 0, 0, last].into())));
        let (mut first, mut second) = (hold(1), hold(1));
        first.grow(SMALL + (700 << 10)).unwrap();
        let error = second.grow(SMALL + (69 << 10)).unwrap_err();
        assert!(error.body().to_string().contains("requests of yours"), "{error:?}");
        second.grow(SMALL + (68 << 10)).unwrap();
        let mut other = hold(2);
        other.grow(SMALL + (256 << 10)).unwrap();
    }
}
