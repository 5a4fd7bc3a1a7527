//! A worker: an engine of `piecewise` behind vLLM's own front end, which speaks to any number of
//! engines over ZeroMQ and brings the OpenAI server, the balancing and the metrics. And a publisher of
//! KV events, for routers that send requests to where their prefix is.

mod front_end;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
#[path = "../../tests/support/fuzz.rs"]
#[allow(clippy::print_stdout, reason = "a test says what it measured")]
mod fuzzing;
pub mod kv_events;
mod live;
mod outbox;
mod preparing;
mod probes;
mod requests;
mod stand_in;
mod utility;
mod wire;
mod worker;
mod zmtp;

pub use front_end::JoinError;
pub use stand_in::{StandIn, stand_in};
pub use wire::VLLM_VERSION;
pub use worker::{Model, Worker, WorkerHandle, WorkerOptions};
pub use zmtp::{Address, ZmtpError};
