//! The dispatcher: lists and bounds, and where a step runs by them.

use super::rules::{OtherWay, SizeRules};
use crate::words::sizes::SizeList;
use crate::words::{
    Dispatch, FallbackReason, GraphMode, MAX_OWN, NO_ROWS, StepMode, StepShape, StepSizes,
    SymbolClass, SymbolTable,
};
use piecewise_backend::artifact::PieceSize;
use piecewise_kernels::step::CaptureSupport;
use std::collections::BTreeSet;

/// The least that the ops of a model support, or that a mode needs of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpSupport {
    /// Those that run between pieces.
    pub between: CaptureSupport,
    /// Those that are launched within pieces.
    pub inside: CaptureSupport,
}

/// The lists and bounds that dispatch goes by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dispatcher {
    /// The mode, which says what graphs there are.
    pub mode: GraphMode,
    /// Sizes in tokens that steps are padded to.
    pub tokens: SizeList,
    /// Sizes for decode batches, rows and sequences.
    pub batches: SizeList,
    /// Tokens per sequence for which uniform batches have programs and graphs of their own,
    /// ascending.
    pub query_lengths: Vec<u64>,
    /// The most tokens of a step.
    pub max_tokens: u64,
    /// The cap on rows of one head call.
    pub max_rows: u64,
    /// The most sequences of a step.
    pub max_sequences: u64,
    /// Whether a step may run at a larger size than its count.
    pub padding: bool,
    /// Sizes for rows of the graph's own kinds. What a model is built with has one for each kind,
    /// in their order.
    pub own: Vec<OwnSizes>,
    /// What holds of single sizes for tokens.
    pub rules: SizeRules,
}

/// The sizes of one of the graph's own kinds of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnSizes {
    /// The role of its symbol: `rows.patches`.
    pub role: String,
    /// Captured counts of its rows, ascending.
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

    pub(super) fn own_sizes(&self, symbols: &SymbolTable, kind: usize) -> SizeList {
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
        let mut dispatch = self.dispatch_to_size(shape);
        if dispatch.mode != StepMode::None && self.rules.is_launched(dispatch.sizes.tokens.rows()) {
            dispatch.mode = StepMode::None;
            dispatch.fallback = Some(FallbackReason::LaunchedSize);
        }
        dispatch
    }

    /// The same step by another way than a replay of its padded size, if it can go that way.
    pub fn other_way(&self, shape: StepShape, way: OtherWay) -> Option<Dispatch> {
        let (mode, sizes) = match way {
            OtherWay::Pieces => (StepMode::Piecewise, self.mixed_sizes(shape)),
            OtherWay::Launches => (StepMode::None, self.launched_sizes(shape)),
        };
        let is_general = matches!(sizes.tokens, PieceSize::General(_))
            || matches!(sizes.rows, PieceSize::General(_));
        let can = match way {
            OtherWay::Pieces => self.mode.needs_splitting() && !is_general,
            OtherWay::Launches => true,
        };
        let fallback = (mode == StepMode::None).then_some(FallbackReason::PaddingLoses);
        can.then_some(Dispatch { mode, sizes, fallback })
    }

    /// Less padding than that of a replay: the programs of a uniform batch if there are any of fewer
    /// tokens, and else those for any size.
    fn launched_sizes(&self, shape: StepShape) -> StepSizes {
        let replayed = self.dispatch_to_size(shape).sizes.tokens.rows();
        let own = self.uniform(shape).and_then(|q| self.decode_sizes(shape, q));
        let own = own.filter(|sizes| sizes.tokens.rows() < replayed);
        own.unwrap_or_else(|| self.general_sizes(shape))
    }

    /// No padding at all: the programs for any size.
    fn general_sizes(&self, shape: StepShape) -> StepSizes {
        StepSizes {
            tokens: PieceSize::General(shape.tokens),
            rows: PieceSize::General(shape.rows.min(self.max_rows)),
            sequences: shape.sequences,
            own: std::array::from_fn(|kind| match self.own.get(kind) {
                Some(_) => PieceSize::General(shape.own[kind]),
                None => NO_ROWS,
            }),
            query_length: None,
        }
    }

    fn dispatch_to_size(&self, shape: StepShape) -> Dispatch {
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
            let fallback = Some(self.fallback(shape, sizes, StepMode::Full));
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
        let wanted = if mode == StepMode::None { wanted } else { mode };
        let fallback = Some(self.fallback(shape, sizes, wanted));
        // A uniform batch has programs of its own where its pieces have no graphs.
        Dispatch { mode: StepMode::None, sizes: decode.unwrap_or(sizes), fallback }
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
    pub(super) fn is_decode_batch(&self, batch: u64, query_length: u64) -> bool {
        batch <= self.max_rows.min(self.max_sequences)
            && batch.saturating_mul(query_length) <= self.max_tokens
    }

    /// The sizes of the full mixed graph of T tokens: R = S = min(T, their caps).
    fn full_mixed_sizes(&self, shape: StepShape) -> Option<StepSizes> {
        let tokens = self.pad_tokens(shape.tokens)?;
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
        let sizes = self.full_mixed(batch * query_length);
        StepSizes { sequences: batch, query_length: Some(query_length), ..sizes }
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

    /// Whether uniform batches that run in pieces have sizes and graphs of their own: not where pieces are
    /// for mixed batches, and few uniform ones run in them.
    pub(super) fn has_uniform_pieces(&self) -> bool {
        self.mode.decode() == StepMode::Piecewise || self.mode.mixed() != StepMode::Piecewise
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
            tokens: self
                .pad_tokens(shape.tokens)
                .filter(|&size| size <= self.max_tokens)
                .map_or(PieceSize::General(shape.tokens), PieceSize::Exact),
            rows: self.pad_rows(rows).map_or(PieceSize::General(rows), PieceSize::Exact),
            sequences: choose(&self.batches, shape.sequences, self.max_sequences).rows(),
            own: std::array::from_fn(|kind| match self.own.get(kind) {
                Some(own) => choose(&own.sizes, shape.own[kind], u64::MAX),
                None => NO_ROWS,
            }),
            query_length: None,
        };
        let uniform = self.uniform(shape).filter(|_| self.has_uniform_pieces());
        if let (PieceSize::Exact(tokens), Some(length)) = (sizes.tokens, uniform) {
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

    /// The size for so many tokens: one of their own, or that of the list.
    fn pad_tokens(&self, tokens: u64) -> Option<u64> {
        match self.rules.is_specialized(tokens) {
            true => Some(tokens),
            false => self.pad(&self.tokens, tokens),
        }
    }

    /// The sizes for tokens of the list and those that are specialized, ascending.
    pub(super) fn listed_tokens(&self) -> Vec<u64> {
        let specialized = self.rules.specialized.iter().filter(|&&size| size <= self.max_tokens);
        Vec::from_iter(BTreeSet::from_iter(self.tokens.sizes().iter().chain(specialized).copied()))
    }

    /// The size for so many rows: a decode batch, or the rows of a uniform batch of several tokens.
    fn pad_rows(&self, rows: u64) -> Option<u64> {
        let of_batch = self.batches.padded(rows).filter(|&size| size <= self.max_rows);
        // A batch that holds the rows and passes a bound says that larger ones pass it, too.
        let several = self.query_lengths.iter().filter(|&&length| length > 1);
        let of_uniform = several.filter_map(|&length| {
            let batch = self.batches.padded(rows.div_ceil(length))?;
            let fits = rows <= self.max_rows && self.is_decode_batch(batch, length);
            fits.then_some((batch * length).min(self.max_rows))
        });
        let size = of_batch.into_iter().chain(of_uniform).min();
        size.filter(|&size| self.padding || size == rows || rows == 0)
    }

    /// The rows that uniform batches of several tokens may want.
    pub(super) fn uniform_rows(&self) -> impl Iterator<Item = u64> + '_ {
        let several = self.decode_batches().filter(|(_, length)| *length > 1);
        several.map(|(batch, length)| (batch * length).min(self.max_rows))
    }

    fn fallback(&self, shape: StepShape, sizes: StepSizes, wanted: StepMode) -> FallbackReason {
        match sizes.tokens {
            PieceSize::Exact(_) if wanted == StepMode::Full && shape.rows > self.max_rows => {
                FallbackReason::SeveralHeadCalls
            }
            _ if !self.padding => FallbackReason::NoExactSize,
            PieceSize::Exact(_) | PieceSize::Uniform { .. } => FallbackReason::TooManyRows,
            PieceSize::General(_) if shape.tokens > self.tokens.max() => {
                FallbackReason::AboveLargestSize
            }
            PieceSize::General(_) => FallbackReason::NoExactSize,
        }
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
        let mut possible = wanted.and_lower().filter(|&mode| {
            let needed = self.needed_support(mode);
            needed.between <= support.between && needed.inside <= support.inside
        });
        possible.next().unwrap_or(GraphMode::None)
    }
}
