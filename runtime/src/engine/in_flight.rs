//! Steps that are submitted and not yet read.

use super::request::RequestId;
use crate::steps::Ticket;
use piecewise_planner::IterationRecord;

/// A submitted step that is not read yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) ticket: Ticket,
    pub(super) record: IterationRecord,
    /// Whose each row of logits is.
    pub(super) rows: Vec<Row>,
    /// The ids that were sampled, and what is told of each; filled when it is read.
    pub(super) sampled: Vec<i32>,
    pub(super) details: Vec<u8>,
    /// Whether some row wants log-probabilities.
    pub(super) wants_logprobs: bool,
}

/// A row of logits of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) request: RequestId,
    /// The conversation's, so that what an earlier one had in flight is told apart.
    pub(super) turn: u32,
    /// Its position, where it tells of the id of the prompt that follows it; else it samples.
    pub(super) tells: Option<u64>,
}
