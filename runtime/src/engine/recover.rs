//! What the engine does about a device that was lost, and about steps that failed.

use super::batching::Engine;
use super::error::EngineError;
use super::request::RequestEvent;
use crate::memory::{KvPoison, SlotPool};
use crate::words::FinishReason;

/// Failures in a row, without a step that was read between them, after which the error is the
/// caller's. Its requests stay all the same.
const PATIENCE: u32 = 3;

impl Engine {
    /// Makes good for a step that the device failed at: the next is tried, on a device that is opened anew
    /// where it was lost.
    ///
    /// # Errors
    /// The same error, after too many in a row.
    pub(super) fn mend(
        &mut self,
        error: EngineError,
        events: &mut Vec<RequestEvent>,
    ) -> Result<bool, EngineError> {
        self.failures += 1;
        if error.is_lost() {
            tracing::warn!("{error}; its requests are computed again");
            self.recover(events)?;
        } else {
            tracing::warn!("{error}; the step is tried again");
            self.retried_steps += 1;
        }
        if self.failures >= PATIENCE { Err(error) } else { Ok(self.has_work()) }
    }

    /// Opens the device anew, and lets every request be computed again from the ids that are known:
    /// pages, slots and sampled ids went with the device, and so did what was in flight. Those that
    /// brought rows end: nobody has these any more.
    pub(super) fn recover(&mut self, events: &mut Vec<RequestEvent>) -> Result<(), EngineError> {
        self.spare.extend(self.in_flight.drain(..));
        self.plan.clear();
        let lost = self.sequences.iter().filter(|(_, sequence)| !sequence.rows.is_empty());
        for (request, usage) in Vec::from_iter(lost.map(|(id, sequence)| (*id, sequence.usage()))) {
            if !self.kept.contains(&request) {
                let reason = FinishReason::RowsLost;
                events.push(RequestEvent::Finished { request, reason, message: None, usage });
            }
            self.remove(request)?;
        }
        while let Some(id) = self.running.pop() {
            self.wait_first(id);
        }
        for sequence in self.sequences.values_mut() {
            sequence.release(&mut self.pool, &mut self.slots);
            sequence.pending = 0;
            self.entries.extend(sequence.entry.take());
        }
        self.pool.forget_all();
        self.model.recover()?;
        let (graph, memory) = (self.model.module().graph(), self.model.memory());
        self.embeddings.lose(graph, memory);
        self.slots = SlotPool::new(graph, memory, self.roles.state_slots);
        self.poison = self.poison.take().map(|_| KvPoison::new(graph, memory));
        self.sample_states = Self::sample_states(&mut self.model, &self.roles)?;
        Ok(())
    }
}
