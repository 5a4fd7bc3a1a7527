//! The buffers of a batch: filled chunk by chunk, reused from step to step.

use super::role_map::{InputRole, RoleMap};
use crate::kv::PageTable;
use crate::model::StepInputs;
use crate::symbols::SymbolClass;
use smallvec::SmallVec;

/// Where the tokens of a chunk come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkTokens<'a> {
    /// Known ids.
    Ids(&'a [u32]),
    /// One token: the id that an earlier step left in this entry of the state of sampled ids.
    Feedback(u32),
}

impl ChunkTokens<'_> {
    /// How many there are.
    pub fn count(&self) -> u64 {
        match self {
            Self::Ids(ids) => ids.len() as u64,
            Self::Feedback(_) => 1,
        }
    }
}

/// Which rows of a chunk want logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkRows {
    /// None: the prompt goes on in a later step.
    None,
    /// The last.
    Last,
    /// Every one.
    All,
}

/// How the token after a row is chosen.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Only so many of the largest logits are drawn from; 0 is off.
    pub top_k: u32,
    /// Only the largest logits whose probabilities add up to this are drawn from; 1 is off.
    pub top_p: f32,
    /// With the position, the key of every draw.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// The tokens that one sequence brings to a step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The tokens.
    pub tokens: ChunkTokens<'a>,
    /// The position of the first.
    pub start: u64,
    /// Pages of the sequence, enough for every position of the chunk.
    pub table: &'a PageTable,
    /// The rows that want logits.
    pub rows: ChunkRows,
    /// The entry of the state of sampled ids that the last row writes.
    pub entry: Option<u32>,
    /// How the next token is chosen.
    pub sampling: Sampling,
}

/// The inputs of a step, as bytes by input.
#[derive(Debug)]
pub struct BatchBuffers {
    roles: RoleMap,
    inputs: Vec<Vec<u8>>,
    counts: Vec<u64>,
    tokens: u64,
    rows: u64,
    sequences: u64,
    /// The tokens of every chunk so far, while they are equal and each wants one row.
    uniform: Option<u64>,
}

impl BatchBuffers {
    /// Empty buffers for a graph's inputs.
    pub fn new(roles: RoleMap) -> Self {
        let inputs = roles.inputs.iter().map(|_| Vec::new()).collect();
        let counts = vec![0; roles.classes.len()];
        Self { roles, inputs, counts, tokens: 0, rows: 0, sequences: 0, uniform: None }
    }

    /// Forgets every chunk; memory stays.
    pub fn clear(&mut self) {
        self.inputs.iter_mut().for_each(Vec::clear);
        (self.tokens, self.rows, self.sequences, self.uniform) = (0, 0, 0, None);
    }

    /// The tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The rows that want logits so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The sequences so far.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// The tokens of every sequence, if they are equal and each wants one row.
    pub fn query_length(&self) -> Option<u64> {
        self.uniform
    }

    /// Appends a sequence's chunk.
    pub fn push(&mut self, chunk: &Chunk<'_>) {
        let count = chunk.tokens.count();
        let wanted = match chunk.rows {
            ChunkRows::None => count..count,
            ChunkRows::Last => count.saturating_sub(1)..count,
            ChunkRows::All => 0..count,
        };
        let first_row = self.tokens;
        for (role, bytes) in self.roles.inputs.iter().zip(&mut self.inputs) {
            append(bytes, *role, chunk, first_row, wanted.clone(), self.roles.table_pages);
        }
        let one_row = chunk.rows == ChunkRows::Last || (chunk.rows == ChunkRows::All && count == 1);
        let agrees = self.sequences == 0 || self.uniform == Some(count);
        self.uniform = (one_row && agrees).then_some(count);
        self.tokens += count;
        self.rows += wanted.end - wanted.start;
        self.sequences += 1;
    }

    /// The step.
    pub fn view(&mut self) -> StepView<'_> {
        for (count, class) in self.counts.iter_mut().zip(&self.roles.classes) {
            *count = match class {
                SymbolClass::Tokens => self.tokens,
                SymbolClass::Rows => self.rows,
                SymbolClass::Sequences => self.sequences,
                SymbolClass::Fixed => 0,
            };
        }
        StepView {
            counts: &self.counts,
            inputs: self.inputs.iter().map(Vec::as_slice).collect(),
            query_length: self.uniform,
        }
    }
}

/// A batch as a step's inputs.
#[derive(Clone, Debug)]
pub struct StepView<'a> {
    counts: &'a [u64],
    inputs: SmallVec<[&'a [u8]; 32]>,
    query_length: Option<u64>,
}

impl StepView<'_> {
    /// What is submitted.
    pub fn inputs(&self) -> StepInputs<'_> {
        StepInputs { counts: self.counts, inputs: &self.inputs, query_length: self.query_length }
    }
}

fn append(
    bytes: &mut Vec<u8>,
    role: InputRole,
    chunk: &Chunk<'_>,
    first_row: u64,
    wanted: std::ops::Range<u64>,
    table_pages: Option<usize>,
) {
    let count = chunk.tokens.count();
    let mut put = |value: i64| bytes.extend_from_slice(&(value as i32).to_le_bytes());
    match role {
        InputRole::TokenIds => match chunk.tokens {
            ChunkTokens::Ids(ids) => ids.iter().for_each(|&id| put(i64::from(id))),
            ChunkTokens::Feedback(_) => put(0),
        },
        InputRole::TokenFeedback => match chunk.tokens {
            ChunkTokens::Ids(ids) => ids.iter().for_each(|_| put(-1)),
            ChunkTokens::Feedback(entry) => put(i64::from(entry)),
        },
        InputRole::TokenPositions => (0..count).for_each(|i| put((chunk.start + i) as i64)),
        InputRole::KvSlots => {
            for i in 0..count {
                put(chunk.table.slot(chunk.start + i).map_or(-1, |slot| slot as i64));
            }
        }
        InputRole::KvBlockTable => {
            let pages = chunk.table.pages();
            for column in 0..table_pages.unwrap_or(0) {
                put(pages.get(column).map_or(0, |page| i64::from(page.number())));
            }
        }
        InputRole::KvLengths => put((chunk.start + count) as i64),
        InputRole::QueryStarts => put(first_row as i64),
        InputRole::QueryLengths => put(count as i64),
        InputRole::LogitRows => wanted.for_each(|i| put((first_row + i) as i64)),
        InputRole::SampleSlots => {
            for i in wanted {
                let last = i + 1 == count;
                put(chunk.entry.filter(|_| last).map_or(-1, i64::from));
            }
        }
        InputRole::SampleTemperature => {
            wanted.for_each(|_| bytes.extend_from_slice(&chunk.sampling.temperature.to_le_bytes()));
        }
        InputRole::SampleTopK => {
            let top_k = i64::from(i32::try_from(chunk.sampling.top_k).unwrap_or(i32::MAX));
            wanted.for_each(|_| put(top_k));
        }
        InputRole::SampleTopP => {
            wanted.for_each(|_| bytes.extend_from_slice(&chunk.sampling.top_p.to_le_bytes()));
        }
        InputRole::SampleSeed => {
            wanted.for_each(|_| bytes.extend_from_slice(&chunk.sampling.seed.to_le_bytes()));
        }
        InputRole::SamplePosition => wanted.for_each(|i| put((chunk.start + i + 1) as i64)),
    }
}
