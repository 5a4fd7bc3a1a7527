//! One request's tokens, how far they have been computed, what its turn asks of sampling, and what the
//! prefix cache has of it.

use super::constraint::{TokenConstraint, TokenLogprobs};
use super::request::{Client, GivenRows, Request};
use crate::batch::{
    BatchBuffers, Chunk, ChunkRows, ChunkTokens, FollowingIds, RoleMap, Sampling, TokenValues,
};
use crate::memory::{PageHash, PagePool, PageTable, SlotPool, StateSlot};
use crate::words::{RequestId, Usage};
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::sampling::{Details, SampleControls, mask_words};
use std::sync::Arc;
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
    /// What its pages are found by besides.
    pub salt: Option<Arc<str>>,
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
    pub client: Client,
    /// When its client's turn is for it, while it waits.
    pub start: u64,
    pub deadline: Option<Instant>,
    /// How many requests behind it were let in before it.
    pub passed: u32,
    stop_ids: Arc<[u32]>,
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
            salt: request.cache_salt.clone(),
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
            client: Client::default(),
            start: 0,
            deadline: None,
            passed: 0,
            stop_ids: Arc::default(),
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
        self.client = request.client;
        self.stop_ids = if request.ignore_eos { Arc::default() } else { request.stop_ids };
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

    /// The pages that it could begin with: those that leave it a token to compute. None where it has
    /// pages already, or its whole prompt must be computed.
    pub(super) fn prefix(&mut self) -> &[PageHash] {
        let is_told_of = self.controls.prompt_logprobs.is_some();
        if !self.shares || is_told_of || !self.table.pages().is_empty() {
            return &[];
        }
        self.hash_pages(self.ids.len().saturating_sub(1) / PAGE_ROWS as usize)
    }

    /// Begins with pages that the prefix cache holds.
    pub(super) fn take_prefix(&mut self, pool: &mut PagePool, pages: usize) {
        self.published = self.table.share(pool, &self.hashes[..pages]);
        self.computed = self.published as u64 * PAGE_ROWS;
    }

    /// Lets the prefix cache have the pages that have become full, computed and known.
    pub(super) fn publish(&mut self, pool: &mut PagePool) {
        let rows = self.ids.len().min(self.computed as usize);
        let (from, to) = (self.published, rows / PAGE_ROWS as usize);
        if to <= from || !self.shares {
            return;
        }
        self.hash_pages(to);
        let Self { ids, table, hashes, salt, .. } = self;
        let parent = from.checked_sub(1).map(|last| hashes[last]);
        let ids = &ids[from * PAGE_ROWS as usize..to * PAGE_ROWS as usize];
        pool.publish(&table.pages()[from..to], parent, &hashes[from..to], ids, salt.as_ref());
        self.published = to;
    }

    /// The hashes of the first pages.
    fn hash_pages(&mut self, pages: usize) -> &[PageHash] {
        let Self { ids, hashes, salt, .. } = self;
        let known = hashes.len();
        for ids in ids.chunks_exact(PAGE_ROWS as usize).take(pages).skip(known) {
            let of_salt = || salt.as_deref().map(PageHash::of_salt);
            hashes.push(PageHash::of(hashes.last().copied().or_else(of_salt), ids));
        }
        &hashes[..pages]
    }
}

/// What a turn asks for.
#[derive(Debug, Default)]
pub(super) struct TurnControls {
    pub logit_bias: Arc<[(u32, f32)]>,
    pub logprobs: Option<u32>,
    pub prompt_logprobs: Option<u32>,
    /// Rows of the prompt whose following id was told of.
    pub told: u64,
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// The ids that may come next, and after how many generated ones.
    pub mask: Vec<u32>,
    masked: Option<u64>,
    /// Whether the row of its entry holds what it goes by.
    pub is_written: bool,
    /// What its row of the next step asks for.
    pub now: SampleControls,
}

impl TurnControls {
    pub(super) fn of(request: &mut Request) -> Self {
        Self {
            logit_bias: std::mem::take(&mut request.logit_bias),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            constraint: request.constraint.take(),
            ..Self::default()
        }
    }

    /// Takes an id that is no stop id; whether it is the last.
    pub(super) fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.constraint.as_mut().map_or(Ok(false), |constraint| constraint.accept(id))
    }

    /// Whether nobody knows which ids may come after `generated` ones, and something says so.
    pub(super) fn awaits_mask(&self, generated: u64) -> bool {
        self.constraint.is_some() && self.masked != Some(generated)
    }

    /// Finds out which ids may come after `generated` ones.
    pub(super) fn ask(&mut self, generated: u64, vocabulary: u64) -> Result<(), String> {
        let Some(constraint) = &mut self.constraint else { return Ok(()) };
        self.mask.clear();
        self.mask.resize(mask_words(vocabulary) as usize, 0);
        constraint.allowed(&mut self.mask)?;
        self.masked = Some(generated);
        match self.mask.iter().all(|word| *word == 0) {
            true => Err("it allows no id to come next".to_owned()),
            false => Ok(()),
        }
    }
}

impl Request {
    /// The most ids that a sequence of `ids` has after this turn.
    fn final_length(&self, ids: usize, max_seq_len: u64) -> u64 {
        let prompt = (ids + self.prompt.len()) as u64;
        prompt.saturating_add(self.max_tokens).min(max_seq_len)
    }
}
