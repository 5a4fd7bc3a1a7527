//! How a turn of a request ends.

use super::BatchingEngine;
use super::request::{RequestEvent, RequestId};
use crate::words::FinishReason;
use piecewise_backend::device::Device;
use std::time::Instant;

impl<D: Device> BatchingEngine<D> {
    /// Ends the present turn of a request, wherever it is, and says what went wrong; what it has in
    /// flight is dropped.
    pub(super) fn finish(
        &mut self,
        request: RequestId,
        reason: FinishReason,
        message: Option<Box<str>>,
        events: &mut Vec<RequestEvent>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        sequence.pending = 0;
        let (usage, keep) = (sequence.usage(), sequence.keep);
        events.push(RequestEvent::Finished { request, reason, message, usage });
        self.leave_queues(request);
        if keep { self.kept.push(request) } else { self.forget(request) }
    }

    /// Takes a request from those that run or wait, and what goes with that.
    fn leave_queues(&mut self, request: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        self.entries.extend(sequence.entry.take());
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        self.running.retain(|&other| other != request);
        self.waiting.retain(|&other| other != request);
    }

    /// Forgets a request, wherever it is, and gives back all that it has.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.leave_queues(request);
        self.kept.retain(|&other| other != request);
        let Some(mut sequence) = self.sequences.remove(&request) else { return };
        sequence.release(&mut self.pool, &mut self.slots);
        sequence.rows.iter().for_each(|given| self.embeddings.end_use(given.rows));
    }

    /// Ends every request whose deadline has passed.
    pub(super) fn finish_overdue(&mut self, events: &mut Vec<RequestEvent>) {
        while let Some(&(deadline, request)) = self.deadlines.first()
            && deadline <= Instant::now()
        {
            self.finish(request, FinishReason::Deadline, None, events);
        }
    }
}
