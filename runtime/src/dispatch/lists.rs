//! The sizes that have programs, and those that have graphs.

use super::dispatcher::Dispatcher;
use super::stretches::Stretch;
use crate::words::{Over, StepMode, StepSizes, SymbolClass, SymbolTable};
use piecewise_backend::artifact::PieceSize;
use std::collections::BTreeSet;

impl Dispatcher {
    /// The most of each symbol, by symbol index, in a step in which what iterates over rows of
    /// `over` runs at `size` of them: a sequence brings a token at least, and rows and sequences
    /// are padded by their own list. A uniform batch has the sequences of its size.
    pub fn bounds(&self, symbols: &SymbolTable, over: Option<Over>, size: PieceSize) -> Vec<u64> {
        let Some(Over { class, times }) = over else { return symbols.bounds().to_vec() };
        let rows = size.rows() / times;
        let few = self.batches.padded(rows).unwrap_or(rows).max(rows);
        let most = match size {
            PieceSize::Uniform { sequences, .. } => sequences,
            PieceSize::Exact(_) | PieceSize::General(_) => few,
        };
        let limit = |(i, &bound): (usize, &u64)| match (class, symbols.at(i).class) {
            (SymbolClass::Tokens, SymbolClass::Rows) => bound.min(few * symbols.at(i).times),
            (SymbolClass::Tokens, SymbolClass::Sequences) => bound.min(most * symbols.at(i).times),
            (SymbolClass::Tokens | SymbolClass::Rows | SymbolClass::Own(_), other)
                if other == class =>
            {
                rows * symbols.at(i).times
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
            SymbolClass::Tokens if apart => self.listed_tokens(),
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
        Vec::from_iter(BTreeSet::from_iter(self.listed_tokens().into_iter().chain(decode)))
    }

    /// The sizes at which pieces that iterate over rows have programs of their own, ascending.
    pub fn row_sizes(&self) -> Vec<u64> {
        let full = self.listed_tokens().into_iter().map(|t| t.min(self.max_rows));
        let full = full.filter(|_| self.mode.mixed() == StepMode::Full);
        Vec::from_iter(BTreeSet::from_iter(self.replayed_rows().into_iter().chain(full)))
    }

    /// The sizes of rows that a step is padded to where its pieces are replayed, ascending.
    pub(super) fn replayed_rows(&self) -> Vec<u64> {
        let batches = self.batches.sizes().iter().copied().filter(|&b| b <= self.max_rows);
        Vec::from_iter(BTreeSet::from_iter(batches.chain(self.uniform_rows())))
    }

    /// The sizes, in rows of its class, at which a stretch is captured, ascending; none where the mode
    /// replays no pieces. Those of uniform batches come last, for a stretch that has programs for them.
    pub fn stretch_sizes(&self, symbols: &SymbolTable, stretch: &Stretch) -> Vec<PieceSize> {
        if !self.mode.needs_splitting() {
            return Vec::new();
        }
        let sizes = match stretch.class {
            SymbolClass::Tokens => {
                let mut sizes = self.listed_tokens();
                sizes.retain(|&size| size <= self.max_tokens && !self.rules.is_launched(size));
                sizes
            }
            SymbolClass::Rows => self.replayed_rows(),
            SymbolClass::Own(kind) => self.own_sizes(symbols, kind).sizes().to_vec(),
            SymbolClass::Sequences | SymbolClass::Fixed => Vec::new(),
        };
        let exact = sizes.into_iter().map(PieceSize::Exact);
        let is_listed = |size: &PieceSize| {
            let rows = size.rows();
            let is_size = self.tokens.sizes().contains(&rows) || self.rules.is_specialized(rows);
            is_size && !self.rules.is_launched(rows)
        };
        let has_uniform = stretch.has_uniform && self.has_uniform_pieces();
        let uniform = self.uniform_sizes().into_iter();
        exact.chain(uniform.filter(|size| has_uniform && is_listed(size))).collect()
    }

    /// The sizes of uniform batches, ascending.
    fn uniform_sizes(&self) -> Vec<PieceSize> {
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
            full.extend(self.listed_tokens().into_iter().map(|t| self.full_mixed(t)));
        }
        full.retain(|sizes| !self.rules.is_launched(sizes.tokens.rows()));
        full.sort_unstable();
        full.dedup();
        full
    }

    /// The steps that ways are measured in, the smallest first, and how each runs.
    pub fn measured_steps(&self) -> Vec<(StepSizes, StepMode)> {
        let decode = |(b, q)| (self.full_decode(b, q), self.mode.decode());
        let mixed = |tokens| match self.mode.mixed() {
            StepMode::Full => (self.full_mixed(tokens), StepMode::Full),
            apart => (self.full_apart(tokens), apart),
        };
        let decodes = self.decode_batches().map(decode);
        let mut steps: Vec<_> =
            decodes.chain(self.listed_tokens().into_iter().map(mixed)).collect();
        for (sizes, mode) in &mut steps {
            if self.rules.is_launched(sizes.tokens.rows()) {
                *mode = StepMode::None;
            }
        }
        // Decodes before others of as many tokens, which have pieces in common with them.
        steps.sort_unstable_by_key(|(sizes, _)| {
            (sizes.tokens, sizes.query_length.is_none(), *sizes)
        });
        steps
    }

    /// The sizes of a mixed step of so many tokens that is no whole graph, with the most rows: one of the
    /// list of rows, at which pieces have programs.
    fn full_apart(&self, tokens: u64) -> StepSizes {
        let full = self.full_mixed(tokens);
        let listed = self.replayed_rows();
        let most = listed.iter().find(|&&rows| rows >= full.rows.rows()).or(listed.last());
        StepSizes { rows: most.map_or(full.rows, |&rows| PieceSize::Exact(rows)), ..full }
    }

    /// Batch sizes and query lengths of the full graphs of uniform batches.
    pub fn decode_batches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.query_lengths.iter().flat_map(move |&q| {
            let batches = self.batches.sizes().iter().copied();
            batches.filter(move |&b| self.is_decode_batch(b, q)).map(move |b| (b, q))
        })
    }
}
