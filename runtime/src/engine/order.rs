//! Who goes before whom: the lower priority first. Of equal ones the clients take turns, and of one
//! client's requests who came first goes first.

use super::batching::Engine;
use super::request::{Client, RequestEvent};
use crate::words::RequestId;
use std::collections::HashMap;

/// How far the turn of a client with a weight of 1 takes it; weights divide it without much loss.
const TURN: u64 = 1 << 20;
/// So many clients are remembered before those are forgotten whose turns are over, or all.
const REMEMBERED: usize = 4096;

/// The turns of clients: each request has a start, above 0, and who waits is let in by it. A client's
/// starts lie a turn apart, and none is before that of the request whose turn it is: who has waited with
/// many does not keep back who comes with one, and who was idle has saved up nothing.
#[derive(Debug)]
pub(super) struct Turns {
    /// The latest start of a request that was let in.
    latest: u64,
    /// Of each client, where its next start is.
    next: HashMap<u64, u64>,
    /// Of each client, how many of its requests run, where that was last asked.
    running: HashMap<u64, usize>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { latest: 1, next: HashMap::new(), running: HashMap::new() }
    }
}

impl Turns {
    /// The start of a client's next request, where `first` is that of the first that waits in its
    /// priority. Where none does, one that was let in from another priority may have been later.
    fn start(&mut self, client: Client, first: Option<u64>) -> u64 {
        let now = first.unwrap_or(self.latest);
        if self.next.len() >= REMEMBERED && !self.next.contains_key(&client.id) {
            self.next.retain(|_, next| *next > now);
            if self.next.len() >= REMEMBERED {
                self.next.clear();
            }
        }
        let next = self.next.entry(client.id).or_default();
        let start = now.max(*next);
        *next = start + TURN / u64::from(client.weight.get());
        start
    }

    /// A request of this start is let in.
    pub(super) fn begin(&mut self, start: u64) {
        self.latest = self.latest.max(start);
    }
}

impl Engine {
    pub(super) fn priority(&self, id: RequestId) -> i32 {
        self.sequences.get(&id).map_or(0, |sequence| sequence.priority)
    }

    fn client(&self, id: RequestId) -> u64 {
        self.sequences.get(&id).map_or(0, |sequence| sequence.client.id)
    }

    /// Its place among those who wait.
    fn place(&self, id: RequestId) -> (i32, u64) {
        self.sequences.get(&id).map_or((0, 0), |sequence| (sequence.priority, sequence.start))
    }

    /// Lets a request wait for its client's turn, among those of its priority.
    pub(super) fn wait_last(&mut self, id: RequestId) {
        let (priority, _) = self.place(id);
        // Who ran before has no start.
        let first = self.waiting.partition_point(|&other| self.place(other) <= (priority, 0));
        let first = self.waiting.get(first).map(|&first| self.place(first));
        let first = first.filter(|first| first.0 == priority).map(|(_, start)| start);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.start = self.turns.start(sequence.client, first);
        }
        self.wait_at_its_place(id);
    }

    fn wait_at_its_place(&mut self, id: RequestId) {
        let place = self.place(id);
        let at = self.waiting.partition_point(|&other| self.place(other) <= place);
        self.waiting.insert(at, id);
    }

    /// Lets a request that ran wait before all of its priority.
    pub(super) fn wait_first(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.start = 0;
        }
        let priority = self.priority(id);
        let at = self.waiting.partition_point(|&other| self.priority(other) < priority);
        self.waiting.insert(at, id);
    }

    /// Who waits, and the running request that makes room for it, by their places: as many run as may, none
    /// of the client's who waits, and several of another's, of which that goes which began last. What fills a
    /// server for long so keeps nobody else out of it. Who waits must find its pages without those that are
    /// given back, so that it is let in for certain.
    pub(super) fn who_yields(&mut self) -> Option<(usize, usize)> {
        if (self.running.len() as u64) < self.options.max_num_seqs {
            return None;
        }
        let priority = self.priority(*self.waiting.front()?);
        let mut counts = std::mem::take(&mut self.turns.running);
        counts.clear();
        for &id in &self.running {
            *counts.entry(self.client(id)).or_default() += 1;
        }
        // Where all that are known run, none waits with nothing that runs.
        let others = if counts.len() < self.turns.next.len() { self.waiting.len() } else { 0 };
        let others = self.waiting.iter().copied().take(others).enumerate();
        let mut others = others.take_while(|&(_, id)| self.priority(id) == priority);
        let waiter = others.find(|&(_, id)| !counts.contains_key(&self.client(id)));
        let has_several = |id| counts.get(&self.client(id)).is_some_and(|count| *count > 1);
        let may = |&id: &RequestId| self.priority(id) >= priority && has_several(id);
        let yields = self.running.iter().rposition(may);
        self.turns.running = counts;
        let ((waiter, id), yields) = waiter.zip(yields)?;
        self.has_room(id).then_some((waiter, yields))
    }

    /// Whether a waiting request finds its pages with nobody's given back.
    fn has_room(&mut self, id: RequestId) -> bool {
        let Some(waiter) = self.sequences.get(&id) else { return false };
        let missing = waiter.table.missing(waiter.ids.len() as u64) + self.running.len();
        let is_full = self.roles.table_pages.is_some() && missing > self.pool.free_pages();
        !is_full && !self.awaits_prefix(id)
    }

    /// Sends the running request at a place back to wait, behind the one of those that wait that goes first
    /// now. Nothing is in flight.
    pub(super) fn yield_turn(
        &mut self,
        (waiter, at): (usize, usize),
        events: &mut Vec<RequestEvent>,
    ) {
        let start = self.waiting.front().map_or(0, |&first| self.place(first).1);
        if let Some(first) = self.waiting.remove(waiter) {
            self.waiting.push_front(first);
            self.sequences.entry(first).and_modify(|sequence| sequence.start = start);
        }
        let request = self.running.remove(at);
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        sequence.release(&mut self.pool, &mut self.slots);
        self.entries.extend(sequence.entry.take());
        sequence.start = start;
        self.wait_at_its_place(request);
        self.count_preempted(request, events);
        tracing::debug!("request {request} is preempted: another client has none that runs");
    }

    /// Lets a request run, behind all of its priority.
    pub(super) fn begin_run(&mut self, id: RequestId) {
        let priority = self.priority(id);
        let at = self.running.partition_point(|&other| self.priority(other) <= priority);
        self.running.insert(at, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn clients_whose_turns_are_over_are_forgotten() {
        let mut turns = Turns::default();
        let client = |id| Client { id, weight: NonZeroU32::MIN };
        for id in 0..10 * REMEMBERED as u64 {
            let start = turns.start(client(id), None);
            assert_eq!(start, 1 + id * TURN, "who is new begins now");
            turns.begin(start + TURN);
        }
        assert!(turns.next.len() <= REMEMBERED);
        // Whose next turn is to come is remembered.
        let busy = Client { id: u64::MAX, weight: NonZeroU32::MIN };
        let starts = [(); 3].map(|()| turns.start(busy, None));
        for id in 0..2 * REMEMBERED as u64 {
            // Somebody is let in all the while, though not yet who is busy.
            let first = starts[0] - 2 * TURN + 2 * TURN * id / REMEMBERED as u64;
            turns.start(client(id), Some(first));
        }
        assert_eq!(turns.start(busy, None), starts[2] + TURN);
        // However many there are whose turns are to come.
        let starts = (0..2 * REMEMBERED as u64).map(|id| turns.start(client(id), None));
        assert_eq!(starts.count(), 2 * REMEMBERED);
        assert!(turns.next.len() <= REMEMBERED);
    }
}
