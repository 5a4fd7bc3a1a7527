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
    /// The tokens of every sequence, if they are equal and each sequence wants one row.
    pub query_length: Option<u64>,
}

/// The padded sizes of a step.
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
}

/// The size of a kind of rows that the graph does not have.
pub const NO_ROWS: PieceSize = PieceSize::General(0);

impl StepSizes {
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
        Some(match self.of(over.class)? {
            PieceSize::Exact(n) => PieceSize::Exact(n * over.times),
            PieceSize::General(n) => PieceSize::General(n * over.times),
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
}

impl FallbackReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::AboveLargestSize,
        Self::NoExactSize,
        Self::TooManyRows,
        Self::NotCaptured,
        Self::SeveralHeadCalls,
    ];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AboveLargestSize => "above_largest_size",
            Self::NoExactSize => "no_exact_size",
            Self::TooManyRows => "too_many_rows",
            Self::NotCaptured => "not_captured",
            Self::SeveralHeadCalls => "several_head_calls",
        }
    }
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
    /// Tokens per sequence for which full decode graphs exist, ascending.
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
        let uniform = shape.query_length.filter(|q| self.query_lengths.contains(q));
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

    /// The sizes of the full decode graph of `b` sequences of `q` tokens: T = b * q, R = S = b.
    fn decode_sizes(&self, shape: StepShape, q: u64) -> Option<StepSizes> {
        let b = self.pad(&self.batches, shape.sequences)?;
        let tokens = b.checked_mul(q)?;
        if tokens > self.max_tokens || shape.rows > b || b > self.max_rows.min(self.max_sequences) {
            return None;
        }
        self.own_fits_full(shape).then(|| self.full_decode(b, q))
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

    fn full_decode(&self, batch: u64, query_length: u64) -> StepSizes {
        StepSizes {
            tokens: PieceSize::Exact(batch * query_length),
            rows: PieceSize::Exact(batch),
            sequences: batch,
            own: self.own_full(),
        }
    }

    /// The sizes of the full mixed graph of size `tokens`.
    pub fn full_mixed(&self, tokens: u64) -> StepSizes {
        StepSizes {
            tokens: PieceSize::Exact(tokens),
            rows: PieceSize::Exact(tokens.min(self.max_rows)),
            sequences: tokens.min(self.max_sequences),
            own: self.own_full(),
        }
    }

    /// Sizes picked apart: tokens from their list, rows and sequences from the batch list.
    fn mixed_sizes(&self, shape: StepShape) -> StepSizes {
        let choose = |list: &SizeList, count: u64, bound: u64| {
            let size = self.pad(list, count).filter(|&size| size <= bound);
            size.map_or(PieceSize::General(count), PieceSize::Exact)
        };
        let rows = shape.rows.min(self.max_rows);
        StepSizes {
            tokens: choose(&self.tokens, shape.tokens, self.max_tokens),
            rows: choose(&self.batches, rows, self.max_rows),
            sequences: choose(&self.batches, shape.sequences, self.max_sequences).rows(),
            own: std::array::from_fn(|kind| match self.own.get(kind) {
                Some(own) => choose(&own.sizes, shape.own[kind], u64::MAX),
                None => NO_ROWS,
            }),
        }
    }

    /// The size for `count`; no size is 0, so that nothing always pads.
    fn pad(&self, list: &SizeList, count: u64) -> Option<u64> {
        list.padded(count).filter(|&size| self.padding || size == count || count == 0)
    }

    fn fallback(&self, shape: StepShape, sizes: StepSizes) -> FallbackReason {
        match sizes.tokens {
            _ if !self.padding => FallbackReason::NoExactSize,
            PieceSize::Exact(_) => FallbackReason::TooManyRows,
            PieceSize::General(_) if shape.tokens > self.tokens.max() => {
                FallbackReason::AboveLargestSize
            }
            PieceSize::General(_) => FallbackReason::NoExactSize,
        }
    }

    /// The most of each symbol, by symbol index, in a step in which what iterates over rows of
    /// `over` runs at `size` of them: a sequence brings a token at least, and rows and sequences
    /// are padded by their own list.
    pub fn limits(&self, symbols: &SymbolTable, over: Option<Over>, size: u64) -> Vec<u64> {
        let Some(Over { class, times }) = over else { return symbols.bounds().to_vec() };
        let size = size / times;
        let few = self.batches.padded(size).unwrap_or(size).max(size);
        let limit = |(i, &bound): (usize, &u64)| match (class, symbols.class_at(i)) {
            (SymbolClass::Tokens, SymbolClass::Rows | SymbolClass::Sequences) => {
                bound.min(few * symbols.times_at(i))
            }
            (SymbolClass::Tokens | SymbolClass::Rows | SymbolClass::Own(_), other)
                if other == class =>
            {
                size * symbols.times_at(i)
            }
            _ => bound,
        };
        symbols.bounds().iter().enumerate().map(limit).collect()
    }

    /// The sizes, in rows of `over`, at which what iterates over them has programs of its own,
    /// ascending.
    pub fn program_sizes(&self, symbols: &SymbolTable, over: Over) -> Vec<u64> {
        let sizes = match over.class {
            SymbolClass::Tokens => self.token_sizes(),
            SymbolClass::Rows => self.row_sizes(),
            SymbolClass::Own(kind) => self.own_sizes(symbols, kind).sizes().to_vec(),
            SymbolClass::Sequences | SymbolClass::Fixed => Vec::new(),
        };
        sizes.into_iter().map(|size| size * over.times).collect()
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
        let lists = self.batches.sizes().iter().copied().filter(|&b| b <= self.max_rows);
        let mut sizes: Vec<_> = lists.chain(full).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The highest mode not above `wanted` in which every split op can be captured, if the weakest
    /// of them supports `weakest`.
    pub fn supported_mode(&self, wanted: GraphMode, weakest: CaptureSupport) -> GraphMode {
        let single_token = self.query_lengths.iter().all(|&q| q == 1);
        let decode_fits = match weakest {
            CaptureSupport::Never => false,
            CaptureSupport::SingleTokenDecode => single_token,
            CaptureSupport::UniformBatch | CaptureSupport::Always => true,
        };
        let mut mode = wanted;
        while (mode.mixed() == StepMode::Full && weakest < CaptureSupport::Always)
            || (mode.decode() == StepMode::Full && !decode_fits)
        {
            let Some(lower) = mode.lowered() else { break };
            mode = lower;
        }
        mode
    }

    /// The sizes, in rows of `over`, at which each piece that iterates over them is captured on its
    /// own, ascending; none where the mode replays no pieces.
    pub fn piece_graph_sizes(&self, symbols: &SymbolTable, over: Over) -> Vec<u64> {
        if ![self.mode.decode(), self.mode.mixed()].contains(&StepMode::Piecewise) {
            return Vec::new();
        }
        let up_to = |list: &SizeList, bound: u64| -> Vec<u64> {
            list.sizes().iter().copied().filter(|&size| size <= bound).collect()
        };
        let sizes = match over.class {
            SymbolClass::Tokens => up_to(&self.tokens, self.max_tokens),
            SymbolClass::Rows => up_to(&self.batches, self.max_rows),
            SymbolClass::Own(kind) => self.own_sizes(symbols, kind).sizes().to_vec(),
            SymbolClass::Sequences | SymbolClass::Fixed => Vec::new(),
        };
        sizes.into_iter().map(|size| size * over.times).collect()
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

    /// Batch sizes and query lengths of the full decode graphs.
    pub fn decode_batches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let cap = self.max_rows.min(self.max_sequences);
        self.query_lengths.iter().flat_map(move |&q| {
            let fits = move |b: &u64| *b <= cap && b.saturating_mul(q) <= self.max_tokens;
            self.batches.sizes().iter().copied().filter(fits).map(move |b| (b, q))
        })
    }
}

#[cfg(test)]
mod tests;
