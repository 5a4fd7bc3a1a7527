//! The schedule: which sequences bring how many tokens to the next step, who goes before whom, and who
//! gives memory back.
//!
//! How many rows of the graph's own kinds a batch brings only the functions of the ops know, so a plan is
//! tried as a batch before it is submitted.

use super::batching::Engine;
use super::error::EngineError;
use super::request::RequestEvent;
use super::sequence::{Planned, Sequence};
use crate::memory::{PageTable, PoolFull};
use crate::words::RequestId;
use piecewise_backend::device::DeviceError;

/// How many waiting requests are looked at when the first finds no room.
const LOOKAHEAD: usize = 8;
/// How many may pass one that finds none, until nobody may.
pub(super) const MOST_PASSED: u32 = 16;

/// What there is room for in a step.
#[derive(Clone, Copy)]
struct Room {
    tokens: u64,
    /// Of logits that can be read.
    rows: u64,
    /// Of logits that one call of the head computes.
    call_rows: u64,
    /// Sequences that may still want a row.
    others: u64,
}

impl Room {
    /// Takes what a sequence brings of its next tokens: as many as there is room for, and of a prompt
    /// that is told of, as many as leave a row for each of the others.
    fn take(&mut self, sequence: &Sequence) -> u64 {
        let due = sequence.due();
        self.others = self.others.saturating_sub(1);
        let mut tokens = due.min(self.tokens);
        let rows = if sequence.tells_prompt(tokens) {
            let left = self.call_rows.saturating_sub(self.others).max(1);
            tokens = tokens.min(left).min(self.rows);
            tokens
        } else if tokens == due && self.rows == 0 {
            tokens = tokens.saturating_sub(1);
            0
        } else {
            u64::from(tokens == due)
        };
        self.tokens -= tokens;
        self.rows -= rows;
        self.call_rows = self.call_rows.saturating_sub(rows);
        tokens
    }
}

/// What became of planning a step.
pub(super) enum Schedule {
    /// `plan` is what to submit; it may be empty.
    Planned,
    /// Pages are short, and which sequence to preempt can't be told before what is in flight is
    /// read.
    ReadFirst,
}

/// Why no step could be planned.
#[derive(derive_more::From)]
enum Unplanned {
    /// A running sequence finds no page.
    NoPages(RequestId, PoolFull),
    #[from]
    Device(DeviceError),
}

impl Engine {
    /// Plans the next step; every planned sequence has its pages.
    pub(super) fn schedule(
        &mut self,
        events: &mut Vec<RequestEvent>,
    ) -> Result<Schedule, EngineError> {
        loop {
            if let Some(turn) = self.who_yields() {
                if !self.in_flight.is_empty() {
                    return Ok(Schedule::ReadFirst);
                }
                self.yield_turn(turn, events);
            }
            match self.plan_step() {
                Ok(()) => {
                    self.fit_own_rows();
                    if self.plan.is_empty() {
                        self.check_stuck()?;
                    }
                    return Ok(Schedule::Planned);
                }
                Err(Unplanned::Device(error)) => return Err(error.into()),
                Err(Unplanned::NoPages(request, full)) => {
                    if self.reclaim(Some(request)) {
                        continue;
                    }
                    if !self.in_flight.is_empty() {
                        return Ok(Schedule::ReadFirst);
                    }
                    if self.running.len() == 1 {
                        return Err(self.give_up(request, full.into()));
                    }
                    self.preempt_last(events);
                }
            }
        }
    }

    /// Plans those that decode, then prompts: of those that run and of those that wait, the running
    /// before the waiting of their priority.
    fn plan_step(&mut self) -> Result<(), Unplanned> {
        self.plan.clear();
        let there = (self.running.len() + self.waiting.len()) as u64;
        let mut room = Room {
            tokens: self.options.max_num_tokens,
            rows: self.model.max_logit_rows(),
            call_rows: self.model.dispatcher().max_rows,
            others: there.min(self.options.max_num_seqs),
        };
        for at in 0..self.running.len() {
            self.plan_running(at, true, &mut room)?;
        }
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            let admitted = self.admit(Some(self.priority(id)), &mut room)?;
            self.plan_running(at + admitted, false, &mut room)?;
            at += admitted + 1;
        }
        self.admit(None, &mut room)?;
        Ok(())
    }

    /// Plans the running sequence at a place, if it decodes or not, as asked.
    fn plan_running(
        &mut self,
        at: usize,
        decoding: bool,
        room: &mut Room,
    ) -> Result<(), Unplanned> {
        let Self { plan, running, sequences, pool, roles, .. } = self;
        let Some(sequence) = sequences.get_mut(&running[at]) else { return Ok(()) };
        if sequence.due() == 0 || sequence.is_decoding() != decoding {
            return Ok(());
        }
        let tokens = room.take(sequence);
        if tokens == 0 {
            return Ok(());
        }
        if roles.table_pages.is_some() {
            let rows = sequence.computed + tokens;
            let grown = sequence.table.grow(pool, rows);
            grown.map_err(|full| Unplanned::NoPages(running[at], full))?;
        }
        plan.push(Planned { request: running[at], tokens });
        Ok(())
    }

    /// Lets waiting requests in, in their order, while there is room: those that go before
    /// `priority`, or all. One that finds no room lets some of its priority past, and one whose
    /// prompt begins as that of a running one waits until that has computed it. Returns how many.
    fn admit(&mut self, priority: Option<i32>, room: &mut Room) -> Result<usize, DeviceError> {
        let (mut admitted, mut at) = (0, 0);
        let mut blocked = None;
        while room.tokens > 0
            && room.rows > 0
            && (self.running.len() as u64) < self.options.max_num_seqs
            && at < LOOKAHEAD
        {
            let Some(&id) = self.waiting.get(at) else { break };
            let own = self.priority(id);
            let is_before = priority.is_none_or(|priority| own < priority);
            if !is_before || blocked.is_some_and(|blocked| blocked != own) {
                break;
            }
            if self.awaits_prefix(id) {
                at += 1;
                continue;
            }
            if !(self.make_room(id) && self.give_slot(id)?) {
                if self.sequences.get(&id).is_none_or(|sequence| sequence.passed >= MOST_PASSED) {
                    break;
                }
                (blocked, at) = (Some(own), at + 1);
                continue;
            }
            if blocked.is_some() {
                for passed in self.waiting.iter().take(at) {
                    self.sequences.get_mut(passed).into_iter().for_each(|s| s.passed += 1);
                }
            }
            self.count_prefix(id);
            let Some(sequence) = self.sequences.get_mut(&id) else { break };
            sequence.entry = self.entries.pop();
            sequence.controls.is_written = false;
            self.turns.begin(sequence.start);
            let tokens = room.take(sequence);
            self.waiting.remove(at);
            self.begin_run(id);
            self.plan.push(Planned { request: id, tokens });
            admitted += 1;
        }
        Ok(admitted)
    }

    /// Gives a waiting sequence a slot of zeros, if its states need one and it has none.
    fn give_slot(&mut self, id: RequestId) -> Result<bool, DeviceError> {
        let has = |sequence: &Sequence| sequence.slot.is_some();
        if !self.slots.is_needed() || self.sequences.get(&id).is_some_and(has) {
            return Ok(true);
        }
        while self.slots.free_slots() == 0 && self.reclaim(Some(id)) {}
        let slot = self.slots.take(self.model.device_mut())?;
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(false) };
        sequence.slot = slot;
        Ok(sequence.slot.is_some())
    }

    /// Gives a waiting sequence the pages for all its known ids, those that the prefix cache holds
    /// first, if a page for each running one stays free.
    fn make_room(&mut self, id: RequestId) -> bool {
        if self.roles.table_pages.is_none() {
            return true;
        }
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return false };
            let (found, free) = self.pool.find(sequence.prefix());
            let rows = sequence.ids.len() as u64;
            let wanted = sequence.table.missing(rows) - found + free + self.running.len();
            if wanted <= self.pool.free_pages() {
                if found > 0 {
                    sequence.take_prefix(&mut self.pool, found);
                }
                return sequence.table.grow(&mut self.pool, rows).is_ok();
            }
            if !self.reclaim(Some(id)) {
                return false;
            }
        }
    }

    /// Sends the sequence admitted last of the last priority back to wait. Nothing is in flight.
    fn preempt_last(&mut self, events: &mut Vec<RequestEvent>) {
        let Some(request) = self.send_last_back() else { return };
        self.count_preempted(request, events);
        tracing::debug!("request {request} is preempted: the KV pool is full");
    }

    pub(super) fn count_preempted(&mut self, request: RequestId, events: &mut Vec<RequestEvent>) {
        self.preemptions += 1;
        self.sequences.get_mut(&request).into_iter().for_each(|sequence| sequence.preemptions += 1);
        events.push(RequestEvent::Preempted { request });
    }

    fn send_last_back(&mut self) -> Option<RequestId> {
        let id = self.running.pop()?;
        let sequence = self.sequences.get_mut(&id)?;
        sequence.release(&mut self.pool, &mut self.slots);
        self.entries.extend(sequence.entry.take());
        self.wait_first(id);
        Some(id)
    }

    /// Reads what is in flight and takes every sequence's memory, running or not, and the prefix
    /// cache's: all that is left of them is their ids.
    pub(super) fn retire_all(&mut self, events: &mut Vec<RequestEvent>) -> Result<(), EngineError> {
        while !self.in_flight.is_empty() {
            self.read_oldest(events)?;
        }
        while self.send_last_back().is_some() {}
        while self.reclaim(None) {}
        self.pool.forget_all();
        Ok(())
    }

    /// Fails where nothing could be planned, nothing is in flight and there is work: the next step
    /// would find it the same. The request that is in the way is removed.
    fn check_stuck(&mut self) -> Result<(), EngineError> {
        if !self.in_flight.is_empty() {
            return Ok(());
        }
        let (running, waiting) = (self.running.first(), self.waiting.front());
        let Some(&request) = running.or(waiting) else { return Ok(()) };
        let Some(sequence) = self.sequences.get(&request) else { return Ok(()) };
        let known = sequence.ids.len();
        let missing = sequence.table.missing(known as u64);
        if self.roles.table_pages.is_some() && missing > self.pool.free_pages() {
            let wanted = PageTable::pages_for(known as u64);
            let (free, pages) = (self.pool.free_pages(), self.pool.pages());
            return Err(self.give_up(request, PoolFull { wanted, free, pages }.into()));
        }
        let (computed, pending) = (sequence.computed, sequence.pending);
        self.forget(request);
        Err(EngineError::Stuck { request, known, computed, pending })
    }

    /// Removes the request that is in the way of all.
    fn give_up(&mut self, request: RequestId, error: EngineError) -> EngineError {
        self.forget(request);
        EngineError::OfRequest { request, source: Box::new(error) }
    }

    /// Whether a running sequence that goes no later is about to compute the next page that a waiting
    /// one could begin with.
    pub(super) fn awaits_prefix(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let priority = sequence.priority;
        let hashes = sequence.prefix();
        let (found, _) = self.pool.find(hashes);
        let Some(&next) = hashes.get(found) else { return false };
        self.running.iter().filter_map(|other| self.sequences.get(other)).any(|other| {
            let computes = other.published <= found && other.hashes.get(found) == Some(&next);
            computes && other.shares && other.priority <= priority
        })
    }

    /// Counts what the present turn found, when it is first let in.
    pub(super) fn count_prefix(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.cached.is_some() {
            return;
        }
        sequence.cached = Some(sequence.computed);
        sequence.waited = sequence.asked.elapsed();
        if sequence.shares {
            self.prefix_counts.queries += sequence.ids.len() as u64;
            self.prefix_counts.hits += sequence.computed;
        }
    }

    /// Takes pages and slot of one sequence that does not run: the conversation idle for longest,
    /// then the request that waits last. Its tokens will be computed again. `but` is the request
    /// that needs the memory, which keeps its own; where a whole prompt is computed beside the
    /// requests, or all memory is given back, none needs it and every sequence may lose its own.
    /// Returns whether there was one to take from.
    pub(super) fn reclaim(&mut self, but: Option<RequestId>) -> bool {
        let Self { kept, waiting, sequences, pool, slots, .. } = self;
        for id in kept.iter().chain(waiting.iter().rev()) {
            let Some(sequence) = sequences.get_mut(id) else { continue };
            if Some(*id) == but || !sequence.holds_memory() {
                continue;
            }
            sequence.release(pool, slots);
            return true;
        }
        false
    }

    /// Shortens the plan to what a step has room for. Nobody passes one that finds no room, so that
    /// it does not wait for ever. One that no step has room for is planned alone: it is the one that
    /// the step fails for.
    pub(super) fn fit_own_rows(&mut self) {
        let tries = self.roles.has_own_rows() && !self.plan.is_empty();
        if !tries || self.fits(self.plan.len(), None) {
            return;
        }
        let kept = largest(self.plan.len() as u64 - 1, |n| self.fits(n as usize, None)) as usize;
        let Planned { request, tokens } = self.plan[kept];
        let part = |tokens| Planned { request, tokens };
        if !self.fits(0, Some(part(1))) {
            self.plan.clear();
            self.plan.push(part(1));
            return;
        }
        let tokens =
            largest(tokens.saturating_sub(1), |tokens| self.fits(kept, Some(part(tokens))));
        self.plan.truncate(kept);
        self.plan.extend((tokens > 0).then(|| part(tokens)));
    }

    /// Whether a step has room for the first `count` of the plan, and for one more beside them.
    fn fits(&mut self, count: usize, more: Option<Planned>) -> bool {
        let Self { plan, sequences, batch, .. } = self;
        batch.clear();
        for planned in plan[..count].iter().chain(&more) {
            let Some(sequence) = sequences.get(&planned.request) else { continue };
            sequence.bring(planned.tokens, batch);
        }
        batch.has_room()
    }
}

/// The most of `0..=most` that fits, where nothing does and more never fits where less does not.
pub(super) fn largest(most: u64, mut fits: impl FnMut(u64) -> bool) -> u64 {
    let (mut fitting, mut above) = (0, most + 1);
    while above - fitting > 1 {
        let middle = fitting + (above - fitting) / 2;
        if fits(middle) { fitting = middle } else { above = middle }
    }
    fitting
}
