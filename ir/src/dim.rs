//! Symbolic dimensions: affine expressions over symbols that the graph declares with bounds.

use crate::entity::{Arena, Entity, Symbol};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// A symbol's declaration: `dim T in [1..8192] role "tokens"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SymbolDecl {
    /// Its name in text, unique in the graph.
    pub name: String,
    /// The smallest value it takes.
    pub min: u64,
    /// The largest value it takes.
    pub max: u64,
    /// What the runtime binds to it; carried and printed, never interpreted here.
    pub role: Option<String>,
}

/// The symbols of a graph.
pub type Symbols = Arena<Symbol, SymbolDecl>;

/// An affine expression `constant + sum(coefficient * symbol)` with coefficients that are not 0,
/// sorted by symbol.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Dim {
    constant: i64,
    terms: SmallVec<[(Symbol, i64); 1]>,
}

impl Dim {
    /// A dimension known at build time.
    pub fn constant(value: u64) -> Self {
        Self { constant: i64::try_from(value).unwrap_or(i64::MAX), terms: SmallVec::new() }
    }

    /// `constant + sum(coefficient * symbol)`; terms of one symbol are added, zeros dropped.
    pub fn affine(constant: i64, terms: impl IntoIterator<Item = (Symbol, i64)>) -> Self {
        let mut sum: SmallVec<[(Symbol, i64); 1]> = SmallVec::new();
        for (symbol, coefficient) in terms {
            match sum.binary_search_by_key(&symbol, |t| t.0) {
                Ok(i) => sum[i].1 = sum[i].1.saturating_add(coefficient),
                Err(i) => sum.insert(i, (symbol, coefficient)),
            }
        }
        sum.retain(|t| t.1 != 0);
        Self { constant, terms: sum }
    }

    /// What is left where every symbol is 0.
    pub fn constant_part(&self) -> i64 {
        self.constant
    }

    /// The symbolic part: symbols in order with their coefficients, none of them 0.
    pub fn terms(&self) -> &[(Symbol, i64)] {
        &self.terms
    }

    /// Its value if no symbol occurs in it and it is not negative.
    pub fn as_constant(&self) -> Option<u64> {
        if self.terms.is_empty() { u64::try_from(self.constant).ok() } else { None }
    }

    /// The symbol, if the expression is exactly one symbol.
    pub fn as_symbol(&self) -> Option<Symbol> {
        match (self.constant, self.terms.as_slice()) {
            (0, &[(symbol, 1)]) => Some(symbol),
            _ => None,
        }
    }

    /// Whether `symbol` occurs in it.
    pub fn mentions(&self, symbol: Symbol) -> bool {
        self.terms.iter().any(|t| t.0 == symbol)
    }

    /// Its value under `sizes`, indexed by symbol; a negative or overflowing value is 0 or
    /// `u64::MAX`.
    pub fn eval(&self, sizes: &[u64]) -> u64 {
        u64::try_from(self.exact(sizes).max(0)).unwrap_or(u64::MAX)
    }

    /// Its value under `sizes`, whatever its sign.
    pub(crate) fn exact(&self, sizes: &[u64]) -> i128 {
        self.sum(|symbol, _| sizes.get(symbol.index()).copied())
    }

    /// Its largest value over the declared bounds.
    pub fn max(&self, symbols: &Symbols) -> u64 {
        let at = |decl: &SymbolDecl, grows| if grows { decl.max } else { decl.min };
        let sum = self.sum(|symbol, grows| symbols.get(symbol).map(|decl| at(decl, grows)));
        u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
    }

    /// Its smallest value over the declared bounds, whatever its sign.
    pub(crate) fn min(&self, symbols: &Symbols) -> i128 {
        let at = |decl: &SymbolDecl, grows| if grows { decl.min } else { decl.max };
        self.sum(|symbol, grows| symbols.get(symbol).map(|decl| at(decl, grows)))
    }

    /// Its value where each symbol is what `size` makes of it and of whether the value grows with
    /// it; one of which nothing is known is 0.
    fn sum(&self, size: impl Fn(Symbol, bool) -> Option<u64>) -> i128 {
        let terms = self.terms.iter().map(|&(symbol, coefficient)| {
            i128::from(coefficient) * i128::from(size(symbol, coefficient > 0).unwrap_or(0))
        });
        i128::from(self.constant) + terms.sum::<i128>()
    }

    /// `self + other`; numbers that would overflow stay at the end of their range.
    pub fn plus(&self, other: &Self) -> Self {
        Self::affine(
            self.constant.saturating_add(other.constant),
            self.terms.iter().chain(&other.terms).copied(),
        )
    }

    /// `self * factor`; numbers that would overflow stay at the end of their range.
    pub fn times(&self, factor: i64) -> Self {
        Self::affine(
            self.constant.saturating_mul(factor),
            self.terms.iter().map(|&(s, c)| (s, c.saturating_mul(factor))),
        )
    }

    /// Writes it with the names of `symbols`: `T`, `2*T+1`, `1024`.
    pub fn display<'a>(&'a self, symbols: &'a Symbols) -> impl fmt::Display + 'a {
        let name = |symbol| symbols.get(symbol).map_or("?", |decl| decl.name.as_str());
        fmt::from_fn(move |f| self.write(f, name))
    }

    fn write<N: fmt::Display>(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: impl Fn(Symbol) -> N,
    ) -> fmt::Result {
        let mut first = true;
        for &(symbol, coefficient) in &self.terms {
            let name = name(symbol);
            match (first, coefficient) {
                (_, 1) if first => write!(f, "{name}")?,
                (_, 1) => write!(f, "+{name}")?,
                (true, c) => write!(f, "{c}*{name}")?,
                (false, c) => write!(f, "{c:+}*{name}")?,
            }
            first = false;
        }
        match (first, self.constant) {
            (true, c) => write!(f, "{c}"),
            (false, 0) => Ok(()),
            (false, c) => write!(f, "{c:+}"),
        }
    }
}

/// With symbols by their numbers, where their names are not at hand: `s0`, `2*s0+1`, `1024`.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, |symbol| format!("s{}", symbol.index()))
    }
}

impl From<u64> for Dim {
    fn from(value: u64) -> Self {
        Self::constant(value)
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Self {
        Self::constant(value as u64)
    }
}

impl From<i32> for Dim {
    fn from(value: i32) -> Self {
        Self::affine(i64::from(value), [])
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Self {
        Self::affine(0, [(symbol, 1)])
    }
}
