//! The schedule: which sequences bring how many tokens to the next step.

use super::request::{RequestEvent, RequestId};
use super::sequence::Sequence;
use super::{BatchingEngine, EngineError};
use crate::kv::{PageTable, PoolFull};
use piecewise_backend::device::{Device, DeviceError};

/// A sequence's part in the next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub request: RequestId,
    pub tokens: u64,
}

/// What became of planning a step.
pub(super) enum Schedule {
    /// `plan` is what to submit; it may be empty.
    Planned,
    /// Pages are short, and which sequence to preempt can't be told before what is in flight is
    /// read.
    ReadFirst,
}

impl<D: Device> BatchingEngine<D> {
    /// Plans the next step; every planned sequence has its pages.
    pub(super) fn schedule(&mut self) -> Result<Schedule, EngineError> {
        loop {
            match self.plan_running() {
                Ok(budget) => {
                    self.admit(budget)?;
                    if self.plan.is_empty() {
                        self.check_stuck()?;
                    }
                    return Ok(Schedule::Planned);
                }
                Err((request, full)) => {
                    if self.reclaim_idle(request) {
                        continue;
                    }
                    if !self.in_flight.is_empty() {
                        return Ok(Schedule::ReadFirst);
                    }
                    if self.running.len() == 1 {
                        return Err(full.into());
                    }
                    self.preempt_last();
                }
            }
        }
    }

    /// Plans the running sequences, those that decode first; returns the tokens left.
    fn plan_running(&mut self) -> Result<u64, (RequestId, PoolFull)> {
        let Self { plan, running, sequences, pool, roles, options, .. } = self;
        plan.clear();
        let mut budget = options.max_num_tokens;
        for decoding in [true, false] {
            for id in running.iter() {
                let Some(sequence) = sequences.get_mut(id) else { continue };
                let tokens = sequence.due().min(budget);
                if tokens == 0 || sequence.is_decoding() != decoding {
                    continue;
                }
                if roles.table_pages.is_some() {
                    let rows = sequence.computed + tokens;
                    sequence.table.grow(pool, rows).map_err(|full| (*id, full))?;
                }
                plan.push(Planned { request: *id, tokens });
                budget -= tokens;
            }
        }
        Ok(budget)
    }

    /// Lets waiting requests in, first come first served, while there is room.
    fn admit(&mut self, mut budget: u64) -> Result<(), DeviceError> {
        while budget > 0 && (self.running.len() as u64) < self.options.max_num_seqs {
            let Some(&id) = self.waiting.front() else { break };
            if !(self.make_room(id) && self.give_slot(id)?) {
                break;
            }
            let Some(sequence) = self.sequences.get_mut(&id) else { break };
            sequence.entry = self.entries.pop();
            sequence.cached.get_or_insert(sequence.computed);
            let tokens = sequence.due().min(budget);
            self.waiting.pop_front();
            self.running.push(id);
            self.plan.push(Planned { request: id, tokens });
            budget -= tokens;
        }
        Ok(())
    }

    /// Gives a waiting sequence a slot of zeros, if its states need one and it has none.
    fn give_slot(&mut self, id: RequestId) -> Result<bool, DeviceError> {
        let has = |sequence: &Sequence| sequence.slot.is_some();
        if !self.slots.is_needed() || self.sequences.get(&id).is_some_and(has) {
            return Ok(true);
        }
        while self.slots.free_slots() == 0 && self.reclaim_idle(id) {}
        let slot = self.slots.take(self.model.device_mut())?;
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(false) };
        sequence.slot = slot;
        Ok(sequence.slot.is_some())
    }

    /// Gives a waiting sequence the pages for all its known ids, if a page for each running one
    /// stays free.
    fn make_room(&mut self, id: RequestId) -> bool {
        if self.roles.table_pages.is_none() {
            return true;
        }
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return false };
            let rows = sequence.ids.len() as u64;
            let wanted = sequence.table.missing(rows) + self.running.len();
            if wanted <= self.pool.free_pages() {
                return sequence.table.grow(&mut self.pool, rows).is_ok();
            }
            if !self.reclaim_idle(id) {
                return false;
            }
        }
    }

    /// Sends the sequence admitted last back to wait. Nothing is in flight.
    fn preempt_last(&mut self) {
        let Some(id) = self.send_last_back() else { return };
        self.preemptions += 1;
        tracing::debug!("request {id} is preempted: the KV pool is full");
    }

    fn send_last_back(&mut self) -> Option<RequestId> {
        let id = self.running.pop()?;
        let sequence = self.sequences.get_mut(&id)?;
        sequence.release(&mut self.pool, &mut self.slots);
        self.entries.extend(sequence.entry.take());
        self.waiting.push_front(id);
        Some(id)
    }

    /// Reads what is in flight and takes every sequence's memory, running or not: all that is left of
    /// them is their ids.
    pub(super) fn retire_all(&mut self, events: &mut Vec<RequestEvent>) -> Result<(), EngineError> {
        while !self.in_flight.is_empty() {
            self.read_oldest(events)?;
        }
        while self.send_last_back().is_some() {}
        while self.reclaim_any() {}
        Ok(())
    }

    /// Fails where nothing runs, nothing is in flight and still nobody can be let in.
    fn check_stuck(&self) -> Result<(), PoolFull> {
        let idle = self.running.is_empty() && self.in_flight.is_empty();
        match self.waiting.front().and_then(|id| self.sequences.get(id)) {
            Some(sequence) if idle => Err(PoolFull {
                wanted: PageTable::pages_for(sequence.ids.len() as u64),
                free: self.pool.free_pages(),
                pages: self.pool.pages(),
            }),
            _ => Ok(()),
        }
    }
}
