//! What goes over the wire between vLLM's front end and an engine, as of vLLM 0.33: msgpack, most of
//! it by position. The shapes change from version to version, so they are held exactly.
//!
//! They are written out here because no published crate has those of 0.33: engine-zmq-client 0.3.1
//! knows neither the reason that comes with a refused request nor the fields about adapters without
//! which the front end takes no engine, and turns a request of 22 fields away.

use serde::Deserialize;

mod call;
mod join;
mod kind;
mod outputs;
mod request;

pub(crate) use call::{Call, answer, call_id, failure};
pub(crate) use join::{Init, hello, ready};
pub(crate) use kind::Kind;
pub(crate) use outputs::{
    Event, EventKind, Finish, Output, OutputError, Prefill, Reason, Stats, monotonic, outputs,
};
pub(crate) use request::{Added, SamplingParams, request_id};

/// How deep values may lie in each other, as in the server's JSON: reading takes stack for each.
const DEEPEST: usize = 128;

/// Reads a message, or a part of one.
///
/// # Errors
/// What it is not, or that its values lie deeper in each other than any that is sent.
pub(crate) fn read<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(DEEPEST);
    T::deserialize(&mut reader)
}

/// The version of vLLM that is spoken.
pub const VLLM_VERSION: &str = "0.33.0";
