//! What a step brings, and the sizes that it runs at.

use super::symbols::{MAX_OWN, Over, SymbolClass};
use piecewise_backend::artifact::PieceSize;

/// The true counts of a step, before they are padded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepShape {
    /// Over all sequences: the rows of the step's inputs.
    pub tokens: u64,
    /// Rows of one call of the head: those whose logits are wanted.
    pub rows: u64,
    /// How many bring a token or more.
    pub sequences: u64,
    /// Rows of the graph's own kinds, by their place.
    pub own: [u64; MAX_OWN],
    /// The tokens of every sequence, if they are equal.
    pub query_length: Option<u64>,
}

/// The padded sizes of a step: the key of its graphs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepSizes {
    /// Padded rows of what iterates over tokens.
    pub tokens: PieceSize,
    /// Padded rows that want logits.
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
        self.of(over.class).map(|size| over.of_size(size))
    }

    /// The padded rows of a class that varies from step to step.
    pub fn rows_of(&self, class: SymbolClass) -> u64 {
        self.of(class).map_or(self.sequences, PieceSize::rows)
    }
}

impl Over {
    /// A size of its class in rows of its own.
    pub fn of_size(self, size: PieceSize) -> PieceSize {
        let rows = size.rows() * self.times;
        match size {
            PieceSize::General(_) => PieceSize::General(rows),
            PieceSize::Exact(_) | PieceSize::Uniform { .. } => PieceSize::Exact(rows),
        }
    }
}

/// A size that a unique piece or op has programs for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoweringSize {
    /// Of the symbol that it iterates over.
    pub size: PieceSize,
    /// The most of each symbol, by symbol index, in the steps that use the program.
    pub bounds: Vec<u64>,
}
