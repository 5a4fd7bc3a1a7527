//! What became of requests, in words and numbers.

use std::time::Duration;

/// What one turn of a request took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Usage {
    /// Ids that the turn starts from, those of earlier turns among them.
    pub prompt: u64,
    /// Of those, ids that were not computed again: pages and slot still held them, or the prefix
    /// cache did.
    pub cached: u64,
    /// Ids that came after the prompt in this turn.
    pub generated: u64,
    /// How often the turn was sent back to wait, since the KV pool was full, and computed again.
    pub preemptions: u64,
    /// How long it waited until it was first let in.
    #[serde(skip)]
    pub waited: Duration,
}

/// Why a turn of a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// One of its stop ids came, or its constraint lets nothing follow.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// Its deadline passed before it was done.
    Deadline,
    /// The device was lost, and with it the rows that the request brought in the place of tokens:
    /// without them it can't be computed again. Add rows and the request once more.
    RowsLost,
    /// The constraint of the request failed, or allowed nothing.
    ConstraintFailed,
    /// No id could be chosen: one of the logits was NaN or +inf, or none was above -inf.
    BadLogits,
}

impl FinishReason {
    /// Whether it ended since something went wrong, and not as it was asked to.
    pub fn is_failure(self) -> bool {
        match self {
            Self::RowsLost | Self::ConstraintFailed | Self::BadLogits => true,
            Self::Stop | Self::Length | Self::Deadline => false,
        }
    }
}

/// Tokens of prompts and the prefix cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct PrefixCounts {
    /// Ids that turns started from, when they were first let in.
    pub queries: u64,
    /// Of those, ids whose rows were there.
    pub hits: u64,
}

/// What an engine has in hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct EngineLoad {
    /// Requests that take part in steps.
    pub running: u64,
    /// Requests that wait for room.
    pub waiting: u64,
    /// Finished requests whose pages and slots are kept.
    pub kept: u64,
    /// Pages of the KV pool.
    pub kv_pages: u64,
    /// Of these, pages that hold nothing that a request needs.
    pub free_kv_pages: u64,
    /// Of these, pages that are found by what they hold, used or free.
    pub cached_kv_pages: u64,
    /// How often a sequence lost its pages or its slot and was computed again.
    pub preemptions: u64,
    /// Requests that ended since their logits gave no id.
    pub bad_logits: u64,
    /// What requests found in the prefix cache.
    pub prefix: PrefixCounts,
}

impl EngineLoad {
    /// The share of the KV pool's pages that is taken.
    pub fn kv_share(&self) -> f64 {
        (self.kv_pages - self.free_kv_pages) as f64 / self.kv_pages.max(1) as f64
    }
}

/// A request's number; never used twice by an engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, derive_more::Display)]
pub struct RequestId(pub(crate) u64);
