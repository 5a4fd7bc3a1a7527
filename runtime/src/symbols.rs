//! What each symbol of a graph stands for at run time.

use crate::roles;
use piecewise_backend::artifact::PieceSize;
use piecewise_ir::dim::Symbols;
use piecewise_ir::entity::{Entity, Symbol};

/// What sizes a symbol takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SymbolClass {
    /// The tokens of a step; sizes from `capture_num_tokens`.
    Tokens,
    /// Rows that want logits; sizes from `decode_batch_sizes`.
    Rows,
    /// Sequences; only metadata is shaped by it.
    Sequences,
    /// Bound once at load.
    Fixed,
}

/// A symbol whose role the runtime does not know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "symbol {symbol} has the role \"{role}\", which nothing binds; known roles are tokens, rows, \
     sequences, kv.rows and sampled.rows"
)]
pub struct UnknownRole {
    /// The symbol's name.
    pub symbol: String,
    /// Its role.
    pub role: String,
}

/// The classes of a graph's symbols and their bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolTable {
    classes: Vec<SymbolClass>,
    bounds: Vec<u64>,
}

impl SymbolTable {
    /// Reads classes from roles and bounds from the declarations. A symbol without a role stands
    /// for tokens.
    ///
    /// # Errors
    /// When a role is unknown.
    pub fn new(symbols: &Symbols) -> Result<Self, UnknownRole> {
        let classes = symbols
            .values()
            .map(|decl| match decl.role.as_deref() {
                None | Some(roles::TOKENS) => Ok(SymbolClass::Tokens),
                Some(roles::ROWS) => Ok(SymbolClass::Rows),
                Some(roles::SEQUENCES) => Ok(SymbolClass::Sequences),
                Some(roles::KV_ROWS | roles::SAMPLED_ROWS) => Ok(SymbolClass::Fixed),
                Some(role) => Err(UnknownRole { symbol: decl.name.clone(), role: role.to_owned() }),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { classes, bounds: symbols.values().map(|decl| decl.max).collect() })
    }

    /// The class of a symbol.
    pub fn class(&self, symbol: Symbol) -> SymbolClass {
        self.classes[symbol.index()]
    }

    /// The class of the symbol at an index.
    pub fn class_at(&self, index: usize) -> SymbolClass {
        self.classes[index]
    }

    /// The largest size of each symbol, by symbol index; a fixed symbol's is its size.
    pub fn bounds(&self) -> &[u64] {
        &self.bounds
    }

    /// The number of symbols.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Whether there is no symbol.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// The value of `class` in counts by symbol index; 0 where the graph has no such symbol.
    pub fn count(&self, class: SymbolClass, counts: &[u64]) -> u64 {
        let at = self.classes.iter().position(|&c| c == class);
        at.and_then(|i| counts.get(i).copied()).unwrap_or(0)
    }

    /// Fills `sizes` by symbol index from a size for each class.
    pub fn fill(&self, sizes: &mut [u64], tokens: PieceSize, rows: PieceSize, sequences: u64) {
        for (i, size) in sizes.iter_mut().enumerate() {
            *size = match self.classes[i] {
                SymbolClass::Tokens => tokens.rows(),
                SymbolClass::Rows => rows.rows(),
                SymbolClass::Sequences => sequences,
                SymbolClass::Fixed => self.bounds[i],
            };
        }
    }
}
