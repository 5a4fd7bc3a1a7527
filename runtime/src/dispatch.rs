//! Dispatch: from what a step brings to the sizes that it runs at and how.
//!
//! A pure function of counts and lists, so that ranks that agree on the counts agree on the rest.

use crate::mode::{GraphMode, StepMode};
use crate::sizes::SizeList;
use crate::symbols::{MAX_OWN, Over, SymbolClass, SymbolTable};
use piecewise_backend::artifact::PieceSize;
use piecewise_kernels::step::CaptureSupport;

/// What a step brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepShape {
    /// Tokens over all sequences.
    pub tokens: u64,
    /// Rows that want logits.
    pub rows: u64,
    /// Sequences.
    pub sequences: u64,
    /// Rows of the graph's own kinds, by their place.
    pub own: [u64; MAX_OWN],
    /// The tokens of every sequence, if they are equal.
    pub query_length: Option<u64>,
}

/// The padded sizes of a step: the key of its graphs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepSizes {
    /// Tokens.
    pub tokens: PieceSize,
    /// Rows that want logits.
    pub rows: PieceSize,
    /// Sequences: only metadata is shaped by it.
    pub sequences: u64,
    /// Rows of the graph's own kinds, by their place; [`NO_ROWS`] past the last.
    pub own: [PieceSize; MAX_OWN],
    /// The tokens of every sequence, in a uniform batch that runs at so many for each of
    /// `sequences`; nothing in any other step.
    pub query_length: Option<u64>,
}

/// The size of a kind of rows that the graph does not have.
pub const NO_ROWS: PieceSize = PieceSize::General(0);

impl StepSizes {
    /// The size of the whole step: that of a uniform batch, or else of its tokens.
    pub fn whole(&self) -> PieceSize {
        self.uniform().unwrap_or(self.tokens)
    }

    /// The size of a uniform batch.
    pub fn uniform(&self) -> Option<PieceSize> {
        let sequences = self.sequences;
        self.query_length.map(|query_length| PieceSize::Uniform { sequences, query_length })
    }

    /// The size of what iterates over rows of a class; `None` where nothing is captured by it.
    pub fn of(&self, class: SymbolClass) -> Option<PieceSize> {
        match class {
            SymbolClass::Tokens => Some(self.tokens),
            SymbolClass::Rows => Some(self.rows),
            SymbolClass::Own(kind) => Some(self.own[kind]),
            SymbolClass::Sequences | SymbolClass::Fixed => None,
        }
    }

    /// The same in rows of `over`.
    pub fn of_rows(&self, over: Over) -> Option<PieceSize> {
        let size = self.of(over.class)?;
        let rows = size.rows() * over.times;
        Some(match size {
            PieceSize::General(_) => PieceSize::General(rows),
            PieceSize::Exact(_) | PieceSize::Uniform { .. } => PieceSize::Exact(rows),
        })
    }

    /// The padded rows of a class that varies from step to step.
    pub fn rows_of(&self, class: SymbolClass) -> u64 {
        self.of(class).map_or(self.sequences, PieceSize::rows)
    }
}

/// Why a step that should have replayed was launched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackReason {
    /// More tokens than the largest size.
    AboveLargestSize,
    /// Padding is off and no size is exact.
    NoExactSize,
    /// More rows or sequences than the graph of this size holds.
    TooManyRows,
    /// The graph was not captured: capture failed, is disabled, or is yet to come.
    NotCaptured,
    /// The rows run in several calls.
    SeveralHeadCalls,
    /// A graph was refused when it was submitted; from there on the step was launched.
    ReplayRefused,
}

impl FallbackReason {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::AboveLargestSize,
        Self::NoExactSize,
        Self::TooManyRows,
        Self::NotCaptured,
        Self::SeveralHeadCalls,
        Self::ReplayRefused,
    ];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AboveLargestSize => "above_largest_size",
            Self::NoExactSize => "no_exact_size",
            Self::TooManyRows => "too_many_rows",
            Self::NotCaptured => "not_captured",
            Self::SeveralHeadCalls => "several_head_calls",
            Self::ReplayRefused => "replay_refused",
        }
    }
}

/// The least that the ops of a model support, or that a mode needs of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpSupport {
    /// Those that run between pieces.
    pub between: CaptureSupport,
    /// Those inside of pieces.
    pub inside: CaptureSupport,
}

/// Where a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// How, provided that the graphs are there.
    pub mode: StepMode,
    /// At which sizes.
    pub sizes: StepSizes,
    /// Why it can't replay, where the mode would have it replay.
    pub fallback: Option<FallbackReason>,
}

/// The lists and bounds that dispatch goes by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dispatcher {
    /// Which graphs there are.
    pub mode: GraphMode,
    /// Sizes for tokens.
    pub tokens: SizeList,
    /// Sizes for decode batches, rows and sequences.
    pub batches: SizeList,
    /// Tokens per sequence for which uniform batches have programs and graphs of their own,
    /// ascending.
    pub query_lengths: Vec<u64>,
    /// The bound on tokens.
    pub max_tokens: u64,
    /// The cap on rows of one head call.
    pub max_rows: u64,
    /// The bound on sequences.
    pub max_sequences: u64,
    /// Whether a step may run at a larger size than its count.
    pub padding: bool,
    /// Sizes for rows of the graph's own kinds. What a model is built with has one for each kind,
    /// in their order.
    pub own: Vec<OwnSizes>,
}

/// The sizes of one of the graph's own kinds of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnSizes {
    /// The role of its symbol: `rows.patches`.
    pub role: String,
    /// The sizes.
    pub sizes: SizeList,
}

impl Dispatcher {
    /// Puts the sizes of the graph's own kinds of rows in their order; a kind without a list gets
    /// the default pattern up to its bound.
    pub fn order_own(&mut self, symbols: &SymbolTable) {
        let kinds = symbols.own().iter().enumerate();
        self.own = kinds
            .map(|(kind, role)| {
                let sizes = self.own_sizes(symbols, kind);
                OwnSizes { role: role.clone(), sizes }
            })
            .collect();
    }

    fn own_sizes(&self, symbols: &SymbolTable, kind: usize) -> SizeList {
        let role = symbols.own().get(kind);
        match self.own.iter().find(|own| Some(&own.role) == role) {
            Some(own) => own.sizes.clone(),
            None => {
                let bound = symbols.count(SymbolClass::Own(kind), symbols.bounds());
                SizeList::default_pattern(bound.max(1))
            }
        }
    }

    /// Where a step of this shape runs.
    pub fn dispatch(&self, shape: StepShape) -> Dispatch {
        let uniform = self.uniform(shape);
        let decode = uniform.and_then(|q| self.decode_sizes(shape, q));
        let wanted = if uniform.is_some() { self.mode.decode() } else { self.mode.mixed() };
        if let (Some(sizes), StepMode::Full | StepMode::None) = (decode, wanted) {
            return Dispatch { mode: wanted, sizes, fallback: None };
        }
        if wanted == StepMode::Full && self.mode.mixed() == StepMode::Full {
            if let Some(sizes) = self.full_mixed_sizes(shape) {
                return Dispatch { mode: StepMode::Full, sizes, fallback: None };
            }
            let sizes = self.mixed_sizes(shape);
            let fallback = Some(self.fallback(shape, sizes));
            return Dispatch { mode: StepMode::None, sizes, fallback };
        }
        let sizes = self.mixed_sizes(shape);
        let mode = if wanted == StepMode::Full { self.mode.mixed() } else { wanted };
        let own = &sizes.own[..self.own.len().min(MAX_OWN)];
        let is_general = |size: &PieceSize| matches!(size, PieceSize::General(_));
        let general = [sizes.tokens, sizes.rows].iter().chain(own).any(is_general);
        let falls_back = match mode {
            StepMode::None => wanted == StepMode::Full,
            StepMode::Piecewise | StepMode::Full => general,
        };
        if !falls_back {
            return Dispatch { mode, sizes, fallback: None };
        }
        let fallback = Some(self.fallback(shape, sizes));
        Dispatch { mode: StepMode::None, sizes, fallback }
    }

    /// The tokens of every sequence, where uniform batches of so many have sizes of their own.
    fn uniform(&self, shape: StepShape) -> Option<u64> {
        let length = shape.query_length.filter(|q| self.query_lengths.contains(q))?;
        (shape.sequences.checked_mul(length) == Some(shape.tokens)).then_some(length)
    }

    /// The sizes of the full graph of `b` sequences of `q` tokens: T = b * q, S = b, and R as many
    /// as T, up to their cap.
    fn decode_sizes(&self, shape: StepShape, q: u64) -> Option<StepSizes> {
        let b = self.pad(&self.batches, shape.sequences).filter(|&b| self.is_decode_batch(b, q))?;
        let sizes = self.full_decode(b, q);
        let fits = shape.rows <= sizes.rows.rows() && self.own_fits_full(shape);
        fits.then_some(sizes)
    }

    /// Whether uniform batches of `batch` sequences and this query length stay below every bound.
    fn is_decode_batch(&self, batch: u64, query_length: u64) -> bool {
        batch <= self.max_rows.min(self.max_sequences)
            && batch.saturating_mul(query_length) <= self.max_tokens
    }

    /// The sizes of the full mixed graph of T tokens: R = S = min(T, their caps).
    fn full_mixed_sizes(&self, shape: StepShape) -> Option<StepSizes> {
        let tokens = self.pad(&self.tokens, shape.tokens)?;
        let sizes = self.full_mixed(tokens);
        let fits = shape.rows <= sizes.rows.rows() && shape.sequences <= sizes.sequences;
        (fits && self.own_fits_full(shape)).then_some(sizes)
    }

    /// Rows of own kinds are of the largest size in a full graph: how many come with a number of
    /// tokens is not known.
    fn own_full(&self) -> [PieceSize; MAX_OWN] {
        let largest = |kind: usize| self.own.get(kind).map(|own| own.sizes.max());
        std::array::from_fn(|kind| largest(kind).map_or(NO_ROWS, PieceSize::Exact))
    }

    fn own_fits_full(&self, shape: StepShape) -> bool {
        self.own.iter().zip(shape.own).all(|(own, count)| count <= own.sizes.max())
    }

    /// The sizes of the full graph of a uniform batch.
    pub(crate) fn full_decode(&self, batch: u64, query_length: u64) -> StepSizes {
        let tokens = batch * query_length;
        StepSizes {
            tokens: PieceSize::Exact(tokens),
            rows: PieceSize::Exact(tokens.min(self.max_rows)),
            sequences: batch,
            own: self.own_full(),
            query_length: Some(query_length),
        }
    }

    /// The sizes of the full mixed graph of size `tokens`.
    pub fn full_mixed(&self, tokens: u64) -> StepSizes {
        StepSizes {
            tokens: PieceSize::Exact(tokens),
            rows: PieceSize::Exact(tokens.min(self.max_rows)),
            sequences: tokens.min(self.max_sequences),
            own: self.own_full(),
            query_length: None,
        }
    }

    /// Sizes picked apart: tokens from their list, rows from theirs, sequences from the batch list. A
    /// uniform batch has as many sequences as make its tokens, where it has programs for so many.
    fn mixed_sizes(&self, shape: StepShape) -> StepSizes {
        let choose = |list: &SizeList, count: u64, bound: u64| {
            let size = self.pad(list, count).filter(|&size| size <= bound);
            size.map_or(PieceSize::General(count), PieceSize::Exact)
        };
        let rows = shape.rows.min(self.max_rows);
        let mut sizes = StepSizes {
            tokens: choose(&self.tokens, shape.tokens, self.max_tokens),
            rows: self.pad_rows(rows).map_or(PieceSize::General(rows), PieceSize::Exact),
            sequences: choose(&self.batches, shape.sequences, self.max_sequences).rows(),
            own: std::array::from_fn(|kind| match self.own.get(kind) {
                Some(own) => choose(&own.sizes, shape.own[kind], u64::MAX),
                None => NO_ROWS,
            }),
            query_length: None,
        };
        if let (PieceSize::Exact(tokens), Some(length)) = (sizes.tokens, self.uniform(shape)) {
            let batch = tokens / length;
            let has_programs =
                self.batches.sizes().contains(&batch) && self.is_decode_batch(batch, length);
            if tokens.is_multiple_of(length) && has_programs {
                (sizes.sequences, sizes.query_length) = (batch, Some(length));
            }
        }
        sizes
    }

    /// The size for `count`; no size is 0, so that nothing always pads.
    fn pad(&self, list: &SizeList, count: u64) -> Option<u64> {
        list.padded(count).filter(|&size| self.padding || size == count || count == 0)
    }

    /// The size for so many rows: a decode batch, or the rows of a uniform batch of several tokens.
    fn pad_rows(&self, rows: u64) -> Option<u64> {
        let of_batch = self.batches.padded(rows).filter(|&size| size <= self.max_rows);
        let of_uniform = self.uniform_rows().filter(|&size| size >= rows).min();
        let size = of_batch.into_iter().chain(of_uniform).min();
        size.filter(|&size| self.padding || size == rows || rows == 0)
    }

    /// The rows that uniform batches of several tokens may want.
    fn uniform_rows(&self) -> impl Iterator<Item = u64> + '_ {
        let several = self.decode_batches().filter(|(_, length)| *length > 1);
        several.map(|(batch, length)| (batch * length).min(self.max_rows))
    }

    fn fallback(&self, shape: StepShape, sizes: StepSizes) -> FallbackReason {
        match sizes.tokens {
            _ if !self.padding => FallbackReason::NoExactSize,
            PieceSize::Exact(_) | PieceSize::Uniform { .. } => FallbackReason::TooManyRows,
            PieceSize::General(_) if shape.tokens > self.tokens.max() => {
                FallbackReason::AboveLargestSize
            }
            PieceSize::General(_) => FallbackReason::NoExactSize,
        }
    }

    /// The most of each symbol, by symbol index, in a step in which what iterates over rows of
    /// `over` runs at `size` of them: a sequence brings a token at least, and rows and sequences
    /// are padded by their own list. A uniform batch has the sequences of its size.
    pub fn limits(&self, symbols: &SymbolTable, over: Option<Over>, size: PieceSize) -> Vec<u64> {
        let Some(Over { class, times }) = over else { return symbols.bounds().to_vec() };
        let rows = size.rows() / times;
        let few = self.batches.padded(rows).unwrap_or(rows).max(rows);
        let most = match size {
            PieceSize::Uniform { sequences, .. } => sequences,
            PieceSize::Exact(_) | PieceSize::General(_) => few,
        };
        let limit = |(i, &bound): (usize, &u64)| match (class, symbols.class_at(i)) {
            (SymbolClass::Tokens, SymbolClass::Rows) => bound.min(few * symbols.times_at(i)),
            (SymbolClass::Tokens, SymbolClass::Sequences) => bound.min(most * symbols.times_at(i)),
            (SymbolClass::Tokens | SymbolClass::Rows | SymbolClass::Own(_), other)
                if other == class =>
            {
                rows * symbols.times_at(i)
            }
            _ => bound,
        };
        symbols.bounds().iter().enumerate().map(limit).collect()
    }

    /// The sizes, in rows of `over`, at which what iterates over them has programs of its own,
    /// ascending; those of uniform batches apart from others for what `sees_sequences`, which can
    /// make use of them.
    pub fn program_sizes(
        &self,
        symbols: &SymbolTable,
        over: Over,
        sees_sequences: bool,
    ) -> Vec<PieceSize> {
        let apart = sees_sequences && over == Over { class: SymbolClass::Tokens, times: 1 };
        let sizes = match over.class {
            SymbolClass::Tokens if apart => self.tokens.sizes().to_vec(),
            SymbolClass::Tokens => self.token_sizes(),
            SymbolClass::Rows => self.row_sizes(),
            SymbolClass::Own(kind) => self.own_sizes(symbols, kind).sizes().to_vec(),
            SymbolClass::Sequences | SymbolClass::Fixed => Vec::new(),
        };
        let exact = sizes.into_iter().map(|size| PieceSize::Exact(size * over.times));
        exact.chain(self.uniform_sizes().into_iter().filter(|_| apart)).collect()
    }

    /// The sizes at which pieces that iterate over tokens have programs of their own, ascending.
    pub fn token_sizes(&self) -> Vec<u64> {
        let decode = self.decode_batches().map(|(b, q)| b * q);
        let mut sizes: Vec<_> = self.tokens.sizes().iter().copied().chain(decode).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The sizes at which pieces that iterate over rows have programs of their own, ascending.
    pub fn row_sizes(&self) -> Vec<u64> {
        let full = self.tokens.sizes().iter().map(|&t| t.min(self.max_rows));
        let full = full.filter(|_| self.mode.mixed() == StepMode::Full);
        let mut sizes: Vec<_> = self.replayed_rows().into_iter().chain(full).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The sizes of rows that a step is padded to where its pieces are replayed, ascending.
    fn replayed_rows(&self) -> Vec<u64> {
        let batches = self.batches.sizes().iter().copied().filter(|&b| b <= self.max_rows);
        let mut sizes: Vec<_> = batches.chain(self.uniform_rows()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// What ops must support for a mode: those between pieces are captured with whole steps alone,
    /// those inside of a piece with every graph of it.
    pub fn needed_support(&self, mode: GraphMode) -> OpSupport {
        let of_decode = match self.query_lengths.iter().all(|&q| q == 1) {
            true => CaptureSupport::SingleTokenDecode,
            false => CaptureSupport::UniformBatch,
        };
        let between = match (mode.decode(), mode.mixed()) {
            (_, StepMode::Full) => CaptureSupport::Always,
            (StepMode::Full, _) => of_decode,
            _ => CaptureSupport::Never,
        };
        let inside = if mode.needs_splitting() { CaptureSupport::Always } else { between };
        OpSupport { between, inside }
    }

    /// The highest mode not above `wanted` that ops of this support can do.
    pub fn supported_mode(&self, wanted: GraphMode, support: OpSupport) -> GraphMode {
        let modes = wanted.and_lower().iter().copied();
        let mut possible = modes.filter(|&mode| {
            let needed = self.needed_support(mode);
            needed.between <= support.between && needed.inside <= support.inside
        });
        possible.next().unwrap_or(GraphMode::None)
    }

    /// The sizes, in rows of `over`, at which each piece that iterates over them is captured on its
    /// own, ascending; none where the mode replays no pieces. Those of uniform batches come last,
    /// for a piece that has programs for them.
    pub fn piece_graph_sizes(
        &self,
        symbols: &SymbolTable,
        over: Over,
        has_uniform: bool,
    ) -> Vec<PieceSize> {
        if !self.mode.needs_splitting() {
            return Vec::new();
        }
        let up_to = |list: &SizeList, bound: u64| -> Vec<u64> {
            list.sizes().iter().copied().filter(|&size| size <= bound).collect()
        };
        let sizes = match over.class {
            SymbolClass::Tokens => up_to(&self.tokens, self.max_tokens),
            SymbolClass::Rows => self.replayed_rows(),
            SymbolClass::Own(kind) => self.own_sizes(symbols, kind).sizes().to_vec(),
            SymbolClass::Sequences | SymbolClass::Fixed => Vec::new(),
        };
        let exact = sizes.into_iter().map(|size| PieceSize::Exact(size * over.times));
        let is_listed = |size: &PieceSize| self.tokens.sizes().contains(&size.rows());
        let uniform =
            self.uniform_sizes().into_iter().filter(|size| has_uniform && is_listed(size));
        exact.chain(uniform).collect()
    }

    /// The sizes of uniform batches, ascending.
    pub fn uniform_sizes(&self) -> Vec<PieceSize> {
        let size = |(sequences, query_length)| PieceSize::Uniform { sequences, query_length };
        let mut sizes: Vec<_> = self.decode_batches().map(size).collect();
        sizes.sort_unstable();
        sizes
    }

    /// The sizes at which the whole step is captured as one graph, ascending.
    pub fn full_graph_sizes(&self) -> Vec<StepSizes> {
        let mut full = Vec::new();
        if self.mode.decode() == StepMode::Full {
            full.extend(self.decode_batches().map(|(b, q)| self.full_decode(b, q)));
        }
        if self.mode.mixed() == StepMode::Full {
            full.extend(self.tokens.sizes().iter().map(|&t| self.full_mixed(t)));
        }
        full.sort_unstable();
        full.dedup();
        full
    }

    /// Batch sizes and query lengths of the full graphs of uniform batches.
    pub fn decode_batches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.query_lengths.iter().flat_map(move |&q| {
            let batches = self.batches.sizes().iter().copied();
            batches.filter(move |&b| self.is_decode_batch(b, q)).map(move |b| (b, q))
        })
    }
}

#[cfg(test)]
mod tests;
