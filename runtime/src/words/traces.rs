//! What a traced step did when, on the host and by the device's clock.

use super::dispatch::Dispatch;
use std::ops::Range;
use std::time::Duration;

/// What a part of a step is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// The copies of inputs to the device.
    Stage,
    /// A member of the step, by its place, replayed or launched.
    Member {
        /// Its place among the members.
        member: usize,
        /// Whether a graph of it alone was replayed.
        replayed: bool,
    },
    /// A graph of several members in a row, by their places.
    Stretch {
        /// The place of the first.
        first: usize,
        /// The place of the last.
        last: usize,
    },
    /// The graph of a whole step.
    Whole,
    /// The copies of outputs to the host.
    ReadBack,
}

impl SpanKind {
    /// Of the graph of members in a row.
    pub(crate) fn of_replayed(members: &Range<usize>) -> Self {
        match members.len() {
            0 | 1 => Self::Member { member: members.start, replayed: true },
            _ => Self::Stretch { first: members.start, last: members.end - 1 },
        }
    }
}

/// A part of a step; times are from the start of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepSpan {
    /// A copy, a piece or a split op.
    pub kind: SpanKind,
    /// When it began by the device's clock: when the part before it ended.
    pub start: Duration,
    /// When it ended, by the same clock.
    pub end: Duration,
}

/// A step as it was traced; times are from the start of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepTrace {
    /// Its mode and sizes, and why it did not replay.
    pub report: Dispatch,
    /// From entering its submit to leaving it, on the host.
    pub submit: (Duration, Duration),
    /// From waiting for its outputs to having them, on the host.
    pub read: (Duration, Duration),
    /// Its parts in order, each from the end of the one before, on the device.
    pub spans: Vec<StepSpan>,
}
