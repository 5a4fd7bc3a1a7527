//! The engine: requests in, tokens out, by continuous batching over a compiled model.
//!
//! Each step mixes what its sequences need next: one token of those that decode, then chunks of
//! prompts, then prompts of waiting requests, up to the bound on tokens. Where the model feeds
//! sampled ids back on the device, a step is submitted before the one before it is read; tokens
//! past a stop id are dropped.
//!
//! What the device fails at costs time and no request: a step that failed is taken back and tried
//! again, and after an error that loses the device it is opened anew, and every request is computed
//! again from its tokens.
//!
//! The KV pool is shared, and so are the slots of states that a sequence has one row of: a slot is
//! given at admission, filled with zeros, and taken back with the pages. A request is admitted when
//! its prompt fits with a page to spare for each running sequence; when pages run out all the same,
//! pages of idle sequences are reclaimed first (kept conversations, oldest first), then the
//! sequence admitted last of those that matter least is preempted: it waits, and its tokens are
//! computed again. So nobody pays for tokens that are never generated, and the oldest sequence of
//! the first priority always goes on.
//!
//! Full pages are found by their ids and all before them, as long as nothing else needs them, so a
//! prompt that begins as another did is computed from where they part. Only the ids must say what a
//! page holds: requests that bring rows or values share none, and a model with states of one row a
//! sequence has no such cache.

mod batching;
mod constraint;
mod controls;
mod error;
mod lifecycle;
mod logits;
mod masks;
mod order;
mod profile;
mod read;
mod recover;
mod request;
mod rows;
mod schedule;
mod sequence;
mod step;
mod watch;

pub use crate::batch::TokenValues;
pub use crate::memory::{KvEvent, KvObserver, PageHash, RowsError, RowsId};
pub use batching::{Engine, StepObserver, TraceObserver};
pub use constraint::{TokenConstraint, TokenLogprobs};
pub use error::EngineError;
pub use piecewise_kernels::sampling::{MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS};
pub use profile::{MOST_PROFILED_STEPS, ProfileError};
pub use request::{Client, EngineOptions, GivenRows, Request, RequestEvent, RowSource};

#[cfg(test)]
mod tests;
