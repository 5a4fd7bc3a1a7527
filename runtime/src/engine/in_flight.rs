//! Steps that are submitted and not yet read.

use super::request::RequestId;
use crate::model::Ticket;
use piecewise_planner::IterationRecord;

/// A submitted step that is not read yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) ticket: Ticket,
    pub(super) record: IterationRecord,
    /// Whose each row is, and of which turn.
    pub(super) rows: Vec<(RequestId, u32)>,
    /// The ids that were sampled, and what is told of each; filled when it is read.
    pub(super) sampled: Vec<i32>,
    pub(super) details: Vec<u8>,
    /// Whether some row wants log-probabilities.
    pub(super) wants_logprobs: bool,
}
