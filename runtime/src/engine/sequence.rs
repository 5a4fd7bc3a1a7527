//! One request's tokens and how far they have been computed.

use super::constraint::TokenLogprobs;
use super::request::{GivenRows, Request, RequestId};
use super::turn_controls::TurnControls;
use crate::batch::{
    BatchBuffers, Chunk, ChunkRows, ChunkTokens, FollowingIds, RoleMap, Sampling, TokenValues,
};
use crate::memory::{PageHash, PagePool, PageTable, SlotPool, StateSlot};
use crate::words::Usage;
use piecewise_kernels::sampling::Details;
use std::time::{Duration, Instant};

/// Ids beyond the prompt that room is made for beforehand, so that decoding allocates nothing
/// and a huge `max_tokens` does not either.
const RESERVED_IDS: usize = 1 << 14;

/// A request under way or kept.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and generated ids that are known on the host.
    pub ids: Vec<u32>,
    /// Positions that steps submitted so far write; rows past them are dead.
    pub computed: u64,
    /// Ids sampled by submitted steps and not read back yet.
    pub pending: u64,
    /// Ids generated in this turn and known.
    pub generated: u64,
    /// The most ids of this turn.
    pub max_tokens: u64,
    /// Known ids when the present turn began, its prompt among them.
    pub prompt: u64,
    /// Positions that were still computed when the present turn was first admitted.
    pub cached: Option<u64>,
    /// When the present turn was asked for, and how long it waited until it was first admitted.
    pub asked: Instant,
    pub waited: Duration,
    /// How often the present turn was sent back to wait.
    pub preemptions: u64,
    pub table: PageTable,
    /// Whether the prefix cache has its pages: its ids alone say what they hold.
    pub shares: bool,
    /// Of the full pages of `ids`, as far as somebody asked.
    pub hashes: Vec<PageHash>,
    /// Pages of `table` that the prefix cache was shown.
    pub published: usize,
    /// From admission on, where the graph has states of one row a sequence.
    pub slot: Option<StateSlot>,
    /// The entry of the state of sampled ids, while it runs.
    pub entry: Option<u32>,
    pub sampling: Sampling,
    /// What it asks of sampling besides.
    pub controls: TurnControls,
    pub keep: bool,
    /// What its request brought for its tokens, rows that stand for some among them.
    pub values: Vec<TokenValues>,
    pub rows: Vec<GivenRows>,
    /// Told apart from earlier turns, whose rows may still be in flight.
    pub turn: u32,
    pub priority: i32,
    pub deadline: Option<Instant>,
    /// How many requests behind it were let in before it.
    pub passed: u32,
    stop_ids: Vec<u32>,
}

/// A sequence's part in the next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub request: RequestId,
    pub tokens: u64,
}

impl Sequence {
    pub(super) fn new(request: Request, max_seq_len: u64, roles: &RoleMap) -> Self {
        let rows = if roles.table_pages.is_some() { max_seq_len } else { 0 };
        let rows = rows.min(request.final_length(0, max_seq_len)).min(RESERVED_IDS as u64);
        let mut sequence = Self {
            ids: Vec::new(),
            computed: 0,
            pending: 0,
            generated: 0,
            max_tokens: 0,
            table: PageTable::with_capacity(rows),
            shares: false,
            hashes: Vec::with_capacity(PageTable::pages_for(rows)),
            published: 0,
            prompt: 0,
            cached: None,
            asked: Instant::now(),
            waited: Duration::ZERO,
            preemptions: 0,
            slot: None,
            entry: None,
            sampling: request.sampling,
            controls: TurnControls::default(),
            keep: false,
            values: Vec::new(),
            rows: Vec::new(),
            turn: 0,
            priority: 0,
            deadline: None,
            passed: 0,
            stop_ids: Vec::new(),
        };
        sequence.extend(request, max_seq_len);
        sequence
    }

    /// Begins another turn: the ids so far, then those of `request`.
    pub(super) fn extend(&mut self, mut request: Request, max_seq_len: u64) {
        let length = request.final_length(self.ids.len(), max_seq_len);
        let more = (length as usize).saturating_sub(self.ids.len());
        self.ids.reserve_exact(more.min(request.prompt.len() + RESERVED_IDS));
        self.ids.extend_from_slice(&request.prompt);
        self.max_tokens = length - self.ids.len() as u64;
        self.generated = 0;
        self.prompt = self.ids.len() as u64;
        self.cached = None;
        (self.asked, self.waited, self.preemptions) = (Instant::now(), Duration::ZERO, 0);
        self.sampling = request.sampling.settled();
        self.controls = TurnControls::of(&mut request);
        self.keep = request.keep;
        (self.priority, self.deadline) = (request.priority, request.deadline);
        self.stop_ids = if request.ignore_eos { Vec::new() } else { request.stop_ids };
        self.turn += 1;
    }

    /// What the present turn has taken so far.
    pub(super) fn usage(&self) -> Usage {
        let Self { prompt, generated, preemptions, waited, .. } = *self;
        let cached = self.cached.unwrap_or(0);
        Usage { prompt, cached, generated, preemptions, waited }
    }

    /// Whether it has pages or a slot.
    pub(super) fn holds_memory(&self) -> bool {
        !self.table.pages().is_empty() || self.slot.is_some()
    }

    /// Gives pages and slot back: its ids will be computed again.
    pub(super) fn release(&mut self, pool: &mut PagePool, slots: &mut SlotPool) {
        self.table.release(pool);
        self.slot.take().into_iter().for_each(|slot| slots.give_back(slot));
        (self.computed, self.published) = (0, 0);
    }

    /// Tokens that it could bring to a step now.
    pub(super) fn due(&self) -> u64 {
        let known = self.ids.len() as u64;
        if self.computed < known {
            return known - self.computed;
        }
        // What may come after an id that is not known yet, a constraint can't tell.
        let goes_on = self.pending > 0 && self.controls.constraint.is_none();
        u64::from(goes_on && self.generated + self.pending < self.max_tokens)
    }

    /// Whether one more token is all that it has to bring.
    pub(super) fn is_decoding(&self) -> bool {
        self.due() == 1
    }

    /// Whether log-probabilities of its prompt are due with the next `count` tokens.
    pub(super) fn tells_prompt(&self, count: u64) -> bool {
        self.controls.prompt_logprobs.is_some()
            && self.computed + 1 < self.prompt
            && self.computed + count > self.controls.told
    }

    /// The next `count` tokens, and which of them want rows: all whose following ids are told of, or
    /// the last if it samples.
    fn chunk(&self, count: u64) -> (ChunkTokens<'_>, ChunkRows) {
        let start = self.computed as usize;
        let rows = match self.controls.prompt_logprobs.filter(|_| self.tells_prompt(count)) {
            Some(likeliest) => {
                let next = self.ids.get(start + count as usize).copied();
                ChunkRows::Told(FollowingIds { likeliest, next })
            }
            None if count == self.due() => ChunkRows::Last,
            None => ChunkRows::None,
        };
        let tokens = match (self.ids.get(start..start + count as usize), self.entry) {
            (Some(ids), _) => ChunkTokens::Ids(ids),
            (None, entry) => ChunkTokens::Feedback(entry.unwrap_or(0)),
        };
        (tokens, rows)
    }

    /// Puts the next `count` tokens into a batch; which of them want rows.
    pub(super) fn bring(&self, count: u64, batch: &mut BatchBuffers) -> ChunkRows {
        let (tokens, rows) = self.chunk(count);
        batch.push(&Chunk {
            tokens,
            start: self.computed,
            table: &self.table,
            slot: self.slot.as_ref(),
            rows,
            entry: self.entry.filter(|_| count == self.due()),
            values: &self.values,
            sampling: self.sampling,
            controls: self.controls.now,
        });
        rows
    }

    /// The id of the prompt that follows a position, and how likely it was; once for each.
    pub(super) fn tell(
        &mut self,
        position: u64,
        details: Details<'_>,
    ) -> Option<(u32, Box<TokenLogprobs>)> {
        if position != self.controls.told {
            return None;
        }
        self.controls.told += 1;
        let id = self.ids.get(position as usize + 1)?;
        Some((*id, Box::new(TokenLogprobs::of(details))))
    }

    pub(super) fn stops_at(&self, id: u32) -> bool {
        self.stop_ids.contains(&id)
    }
}

impl Request {
    /// The most ids that a sequence of `ids` has after this turn.
    fn final_length(&self, ids: usize, max_seq_len: u64) -> u64 {
        let prompt = (ids + self.prompt.len()) as u64;
        prompt.saturating_add(self.max_tokens).min(max_seq_len)
    }
}
