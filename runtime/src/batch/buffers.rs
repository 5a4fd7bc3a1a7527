//! The buffers of a batch: filled chunk by chunk, reused from step to step.

use super::role_map::RoleMap;
use crate::memory::{Page, PageTable, StateSlot};
use crate::words::{FillError, InputSource, StepData, SymbolClass};
use piecewise_kernels::inputs::{
    BatchView, FollowingIds, SequenceInStep, TokenValues, ValuesInStep,
};
use piecewise_kernels::sampling::{SampleControls, Sampling};
use smallvec::SmallVec;

/// Where the tokens of a chunk come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkTokens<'a> {
    /// Ids that the host knows.
    Ids(&'a [u32]),
    /// One token: the id that an earlier step left in this entry of the state of sampled ids.
    Feedback(u32),
}

impl ChunkTokens<'_> {
    /// 1 where the host does not know the id yet.
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
    /// The last alone: what follows the chunk is sampled.
    Last,
    /// Every one, such as those of drafts.
    All,
    /// Every one, and each is told of the id that follows it in the prompt.
    Told(FollowingIds),
}

/// The tokens that one sequence brings to a step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Ids, or where the device finds the id.
    pub tokens: ChunkTokens<'a>,
    /// The position of the first.
    pub start: u64,
    /// Pages of the sequence, enough for every position of the chunk.
    pub table: &'a PageTable,
    /// The row of the states of role `sequence.state` that is its own.
    pub slot: Option<&'a StateSlot>,
    /// The rows that want logits.
    pub rows: ChunkRows,
    /// The entry of the state of sampled ids that the last row writes.
    pub entry: Option<u32>,
    /// What its request brings for its tokens, from position 0 on.
    pub values: &'a [TokenValues],
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// What it asks for besides.
    pub controls: SampleControls,
}

/// The inputs of a step, as bytes by input.
#[derive(Debug)]
pub struct BatchBuffers {
    roles: RoleMap,
    sequences: Vec<SequenceInStep>,
    ids: Vec<i32>,
    pages: Vec<u32>,
    values: Vec<ValuesInStep>,
    numbers: Vec<i32>,
    inputs: Vec<Vec<u8>>,
    short_rows: Vec<(usize, u64)>,
    counts: Vec<u64>,
    rows: u64,
    /// The tokens of every chunk so far, while they are equal.
    uniform: Option<u64>,
}

impl BatchBuffers {
    /// Empty buffers for a graph's inputs.
    pub fn new(roles: RoleMap) -> Self {
        let inputs = roles.inputs.iter().map(|_| Vec::new()).collect();
        let counts = vec![0; roles.symbols.bounds().len()];
        let bound = |class| roles.symbols.count(class, roles.symbols.bounds()) as usize;
        let (most, tokens) = (bound(SymbolClass::Sequences), bound(SymbolClass::Tokens));
        // A sequence that grows must not make a step allocate.
        let pages = Vec::with_capacity(most.saturating_mul(roles.table_pages.unwrap_or(0)));
        let (sequences, ids) = (Vec::with_capacity(most), Vec::with_capacity(tokens));
        let short_rows = Vec::with_capacity(roles.inputs.len());
        Self {
            roles,
            sequences,
            ids,
            pages,
            values: Vec::with_capacity(most),
            numbers: Vec::new(),
            inputs,
            short_rows,
            counts,
            rows: 0,
            uniform: None,
        }
    }

    /// What a step's inputs are.
    pub fn roles(&self) -> &RoleMap {
        &self.roles
    }

    /// Forgets every chunk; memory stays.
    pub fn clear(&mut self) {
        self.sequences.clear();
        self.ids.clear();
        self.pages.clear();
        self.values.clear();
        self.numbers.clear();
        (self.rows, self.uniform) = (0, None);
    }

    /// The tokens of all chunks so far.
    pub fn tokens(&self) -> u64 {
        self.ids.len() as u64
    }

    /// The rows that want logits so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// How many sequences have brought a chunk so far.
    pub fn sequences(&self) -> u64 {
        self.sequences.len() as u64
    }

    /// The tokens of every sequence, if they are equal.
    pub fn query_length(&self) -> Option<u64> {
        self.uniform
    }

    /// Adds the chunk of another sequence to the step.
    pub fn push(&mut self, chunk: &Chunk<'_>) {
        let count = chunk.tokens.count();
        let (rows, follows) = match chunk.rows {
            ChunkRows::None => (0, None),
            ChunkRows::Last => (count.min(1), None),
            ChunkRows::All => (count, None),
            ChunkRows::Told(follows) => (count, Some(follows)),
        };
        let agrees = self.sequences.is_empty() || self.uniform == Some(count);
        self.uniform = agrees.then_some(count);
        let (first_token, first_page) = (self.tokens(), self.pages.len());
        let feedback = match chunk.tokens {
            ChunkTokens::Ids(ids) => {
                self.ids.extend(ids.iter().map(|&id| id as i32));
                None
            }
            ChunkTokens::Feedback(entry) => {
                self.ids.push(0);
                Some(entry)
            }
        };
        self.pages.extend(chunk.table.pages().iter().map(Page::number));
        let first_values = self.values.len();
        for values in chunk.values {
            let taken = ValuesInStep::take(values, chunk.start, count, &mut self.numbers);
            self.values.push(taken);
        }
        self.sequences.push(SequenceInStep {
            start: chunk.start,
            first_token,
            tokens: count,
            first_row: self.rows,
            rows,
            first_page,
            pages: self.pages.len() - first_page,
            feedback,
            entry: chunk.entry,
            slot: chunk.slot.map(StateSlot::number),
            first_values,
            values: chunk.values.len(),
            sampling: chunk.sampling,
            controls: chunk.controls,
            follows,
        });
        self.rows += rows;
    }

    fn batch(&self) -> BatchView<'_> {
        let Self { sequences, ids, pages, values, numbers, .. } = self;
        BatchView::new(sequences, ids, pages).with_values(values, numbers)
    }

    /// Whether a step has room for the rows of the graph's own kinds that the chunks so far bring.
    pub fn has_room(&self) -> bool {
        self.roles.count_own(&self.batch()).is_ok()
    }

    /// The step of the chunks so far, whose inputs are filled where they are to lie when it is submitted.
    ///
    /// # Errors
    /// When there are more rows of the graph's own kinds than a step has room for. The chunks stay.
    pub fn step(&mut self) -> Result<BatchStep<'_>, FillError> {
        self.count()?;
        Ok(BatchStep { buffers: self })
    }

    /// Counts what the chunks bring, by symbol.
    fn count(&mut self) -> Result<(), FillError> {
        let own = self.roles.count_own(&self.batch())?;
        let Self { roles, sequences, ids, counts, rows, .. } = self;
        roles.symbols.fill(counts, |class| match class {
            SymbolClass::Tokens => ids.len() as u64,
            SymbolClass::Rows => *rows,
            SymbolClass::Sequences => sequences.len() as u64,
            SymbolClass::Own(kind) => own[kind],
            SymbolClass::Fixed => 0,
        });
        Ok(())
    }

    /// Fills the inputs: the step.
    ///
    /// # Errors
    /// When there are more rows of the graph's own kinds than a step has room for, an input can't be
    /// filled, or is filled with more or fewer elements than it has. The chunks stay.
    pub fn view(&mut self) -> Result<StepView<'_>, FillError> {
        self.count()?;
        let Self { roles, sequences, ids, pages, inputs, short_rows, counts, uniform, .. } = self;
        let batch = BatchView::new(sequences, ids, pages).with_values(&self.values, &self.numbers);
        short_rows.clear();
        for (i, (bound, bytes)) in roles.inputs.iter().zip(&mut *inputs).enumerate() {
            let dims = bound.ty.dims(counts);
            let columns = bound.input.fill(&batch, &dims, bytes);
            let columns = columns.map_err(|reason| bound.error(reason))?;
            short_rows.extend(columns.map(|columns| (i, columns)));
        }
        Ok(StepView {
            counts,
            inputs: inputs.iter().map(Vec::as_slice).collect(),
            short_rows,
            query_length: *uniform,
        })
    }
}

/// A batch as a step, whose inputs are not filled yet.
#[derive(Debug)]
pub struct BatchStep<'a> {
    buffers: &'a BatchBuffers,
}

impl BatchStep<'_> {
    /// The step as a model takes it.
    pub fn data(&self) -> StepData<'_> {
        let BatchBuffers { counts, uniform, .. } = self.buffers;
        let query_length = *uniform;
        StepData { counts, source: Some(self), query_length, ..StepData::default() }
    }
}

impl InputSource for BatchStep<'_> {
    fn fill(&self, input: usize, place: &mut [u8]) -> Result<Option<u64>, FillError> {
        let BatchBuffers { roles, counts, .. } = self.buffers;
        let Some(bound) = roles.inputs.get(input) else { return Ok(None) };
        let filled = bound.input.fill_place(&self.buffers.batch(), &bound.ty.dims(counts), place);
        filled.map_err(|reason| bound.error(reason))
    }
}

/// A batch as a step's inputs.
#[derive(Clone, Debug)]
pub struct StepView<'a> {
    counts: &'a [u64],
    inputs: SmallVec<[&'a [u8]; 32]>,
    short_rows: &'a [(usize, u64)],
    query_length: Option<u64>,
}

impl StepView<'_> {
    /// The step as a model takes it; its bytes lie in the buffers.
    pub fn data(&self) -> StepData<'_> {
        let Self { counts, ref inputs, short_rows, query_length } = *self;
        StepData { counts, inputs, short_rows, query_length, ..StepData::default() }
    }
}
