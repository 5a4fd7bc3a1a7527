//! The body of a request, bounded in size and time, and all bodies in memory.

use super::error::ApiError;
use super::state::State;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of each body that count for nothing, so that small requests are read however many large ones
/// there are.
const SMALL: usize = 64 << 10;
/// Bytes of a body that are read at once; more of them would keep the streams of others waiting.
const LARGEST_HERE: usize = 32 << 10;
/// Bytes of memory that a value of a body takes: that of `serde_json` and its place in a list or an object.
const OF_VALUE: usize = 128;
/// Bytes that are counted at once.
const UNIT: usize = 1 << 10;

/// What all bodies may take of memory, from their first bytes until their requests are on their way.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory {
    units: Arc<Semaphore>,
    bytes: usize,
}

impl BodyMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units)), bytes }
    }

    pub(super) fn hold(&self) -> Held {
        Held { memory: self.clone(), permit: None, bytes: 0, is_large: false }
    }
}

/// The memory of one body; given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Held {
    memory: BodyMemory,
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
    is_large: bool,
}

impl Held {
    /// Whether the body takes long to read.
    pub(crate) fn is_large(&self) -> bool {
        self.is_large
    }

    /// Takes so many bytes more.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        let units = self.bytes.saturating_sub(SMALL).div_ceil(UNIT);
        let more =
            units.saturating_sub(self.permit.as_ref().map_or(0, |permit| permit.num_permits()));
        if more == 0 {
            return Ok(());
        }
        let full = || ApiError::bodies_are_full(self.memory.bytes);
        let more = u32::try_from(more).map_err(|_| full())?;
        let permit = Arc::clone(&self.memory.units).try_acquire_many_owned(more);
        let permit = permit.map_err(|_| full())?;
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
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
    let whole = collect(request.into_body(), bound, state.bodies.hold());
    let in_time = tokio::time::timeout(state.limits.body_time, whole).await;
    in_time.map_err(|_| ApiError::too_slow())?
}

fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Err(ApiError::encoded(&String::from_utf8_lossy(encoding.as_bytes())))
        }
        _ => Ok(()),
    }
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
        let mut held = BodyMemory::new(1 << 20).hold();
        let list = format!("[{}1]", "1,".repeat(999));
        check_values(list.as_bytes(), 1001, &mut held).unwrap();
        let error = check_values(list.as_bytes(), 1000, &mut held).unwrap_err();
        assert!(error.body().to_string().contains("1001 values"), "{error:?}");
    }

    #[test]
    fn a_body_is_large_by_its_bytes_however_many_values_they_are() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (bytes, is_large) in [(LARGEST_HERE, false), (LARGEST_HERE + 1, true)] {
            let list = format!("[{}1]", "1,".repeat(bytes / 2 - 2)) + &" ".repeat(bytes % 2 + 1);
            assert_eq!(list.len(), bytes);
            let held = BodyMemory::new(8 << 20).hold();
            let collected = runtime.block_on(collect(Body::from(list), 1 << 20, held));
            let (list, mut held) = collected.unwrap();
            check_values(&list, 1 << 20, &mut held).unwrap();
            assert_eq!(held.is_large(), is_large, "{bytes}");
        }
    }

    #[test]
    fn bodies_share_what_memory_there_is_and_small_ones_are_read_always() {
        let memory = BodyMemory::new(1 << 20);
        let (mut first, mut second) = (memory.hold(), memory.hold());
        first.grow(SMALL + (600 << 10)).unwrap();
        second.grow(SMALL).unwrap();
        second.grow(400 << 10).unwrap();
        second.grow(100 << 10).unwrap_err();
        let mut third = memory.hold();
        third.grow(SMALL).unwrap();
        third.grow(25 << 10).unwrap_err();
        drop(first);
        let mut other = memory.hold();
        other.grow(SMALL + (600 << 10)).unwrap();
        assert_eq!(memory.units.available_permits(), 24);
        drop((second, third, other));
        assert_eq!(memory.units.available_permits(), 1024);
    }
}
