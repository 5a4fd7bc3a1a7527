//! What each symbol of a graph stands for at run time.

use crate::words::roles;
use piecewise_ir::dim::Symbols;
use piecewise_ir::entity::{Entity, Symbol};

/// The most kinds of rows of its own that a graph may have.
pub const MAX_OWN: usize = 4;

/// What sizes a symbol takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SymbolClass {
    /// The tokens of a step; sizes from `capture_num_tokens`.
    Tokens,
    /// Rows that want logits; sizes from `decode_batch_sizes`.
    Rows,
    /// Sequences; only metadata is shaped by it.
    Sequences,
    /// Rows of the graph's own kind, by its place among those kinds; sizes from their own list.
    Own(usize),
    /// Of no step: one value, from when the model is loaded.
    Fixed,
}

/// What a symbol counts: so many times the rows of a class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Over {
    /// The rows that it is a multiple of.
    pub class: SymbolClass,
    /// 1 but for a symbol that is tied to another, such as one of role `4*tokens`.
    pub times: u64,
}

impl Over {
    /// What a symbol of this role counts; `own` finds the place of a role `rows.*`.
    pub fn of(role: Option<&str>, own: &mut dyn FnMut(&str) -> usize) -> Option<Self> {
        let (times, base) = match role.and_then(|role| role.split_once('*')) {
            Some((times, base)) => (times.parse().ok().filter(|&n: &u64| n > 0)?, Some(base)),
            None => (1, role),
        };
        let class = match base {
            None | Some(roles::TOKENS) => SymbolClass::Tokens,
            Some(roles::ROWS) => SymbolClass::Rows,
            Some(roles::SEQUENCES) => SymbolClass::Sequences,
            Some(
                roles::KV_ROWS | roles::SAMPLED_ROWS | roles::SLOT_ROWS | roles::EMBEDDING_ROWS,
            ) if times == 1 => SymbolClass::Fixed,
            Some(role) if role.len() > roles::OWN_ROWS.len() && is_own(role) => {
                SymbolClass::Own(own(role))
            }
            Some(_) => return None,
        };
        Some(Self { class, times })
    }
}

fn is_own(role: &str) -> bool {
    role.starts_with(roles::OWN_ROWS)
}

/// Why symbols can't be bound.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum SymbolError {
    /// A role that the runtime does not know.
    #[error(
        "symbol {symbol} has the role \"{role}\", which nothing binds; known roles are tokens, \
         rows, sequences, kv.rows, sampled.rows, sequence.slots, embedding.rows, rows.NAME for rows \
         of your own, and a multiple of one that varies, such as 4*tokens"
    )]
    Unknown { symbol: String, role: String },
    /// More kinds of rows than can be told apart.
    #[error(
        "symbol {symbol} has the role \"{role}\", but there are {MAX_OWN} other kinds of rows.* \
         already; tie it to one of them by a role such as \"2*rows.NAME\""
    )]
    TooMany { symbol: String, role: String },
    /// A symbol whose bound is not as many times that of the symbol that it is tied to.
    #[error(
        "symbol {symbol} is declared up to {bound}, but by its role it is {times} times as many as \
         another that goes up to {base}: declare it up to {expected}"
    )]
    Bound {
        symbol: String,
        bound: u64,
        times: u64,
        /// The bound of what it is tied to.
        base: u64,
        /// The bound that would fit.
        expected: u64,
    },
}

/// The classes of a graph's symbols and their bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolTable {
    over: Vec<Over>,
    bounds: Vec<u64>,
    own: Vec<String>,
}

impl SymbolTable {
    /// Reads classes from roles and bounds from the declarations. A symbol without a role stands
    /// for tokens.
    ///
    /// # Errors
    /// When a role is unknown, there are more than [`MAX_OWN`] kinds of rows of its own, or the
    /// bounds of symbols that are tied to each other do not fit.
    pub fn new(symbols: &Symbols) -> Result<Self, SymbolError> {
        let mut own: Vec<String> = Vec::new();
        let mut table = Self { over: Vec::new(), bounds: Vec::new(), own: Vec::new() };
        for decl in symbols.values() {
            let mut place = |role: &str| {
                own.iter().position(|known| known == role).unwrap_or_else(|| {
                    own.push(role.to_owned());
                    own.len() - 1
                })
            };
            let role = || decl.role.clone().unwrap_or_default();
            let over = Over::of(decl.role.as_deref(), &mut place)
                .ok_or_else(|| SymbolError::Unknown { symbol: decl.name.clone(), role: role() })?;
            if own.len() > MAX_OWN {
                return Err(SymbolError::TooMany { symbol: decl.name.clone(), role: role() });
            }
            let others = table.over.iter().zip(&table.bounds);
            let tied = others.clone().find(|(other, _)| {
                other.class == over.class && (other.times != 1 || over.times != 1)
            });
            if let Some((other, &bound)) = tied {
                let base = bound / other.times;
                let expected = base.saturating_mul(over.times);
                if decl.max != expected || bound % other.times != 0 {
                    let (symbol, bound, times) = (decl.name.clone(), decl.max, over.times);
                    return Err(SymbolError::Bound { symbol, bound, times, base, expected });
                }
            }
            table.over.push(over);
            table.bounds.push(decl.max);
        }
        table.own = own;
        Ok(table)
    }

    /// Which rows a symbol counts, and how many times.
    pub fn over(&self, symbol: Symbol) -> Over {
        self.over[symbol.index()]
    }

    /// The rows that a symbol is a multiple of.
    pub fn class(&self, symbol: Symbol) -> SymbolClass {
        self.over[symbol.index()].class
    }

    /// What the symbol at an index counts.
    pub(crate) fn at(&self, index: usize) -> Over {
        self.over[index]
    }

    /// The largest size of each symbol, by symbol index; a fixed symbol's is its size.
    pub fn bounds(&self) -> &[u64] {
        &self.bounds
    }

    /// The largest size of a symbol.
    pub fn bound(&self, symbol: Symbol) -> u64 {
        self.bounds[symbol.index()]
    }

    /// The roles of the graph's own kinds of rows, by their place.
    pub fn own(&self) -> &[String] {
        &self.own
    }

    /// The rows of `class` in counts by symbol index; 0 where the graph has no such symbol.
    pub fn count(&self, class: SymbolClass, counts: &[u64]) -> u64 {
        let at = self.over.iter().position(|over| over.class == class);
        at.and_then(|i| Some(counts.get(i)? / self.over[i].times)).unwrap_or(0)
    }

    /// Fills `sizes` by symbol index from the rows of each class; a fixed symbol has its size.
    pub fn fill(&self, sizes: &mut [u64], rows: impl Fn(SymbolClass) -> u64) {
        for (i, size) in sizes.iter_mut().enumerate() {
            let Over { class, times } = self.over[i];
            *size = match class {
                SymbolClass::Fixed => self.bounds[i],
                _ => times * rows(class),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::dim::SymbolDecl;

    fn table(decls: &[(&str, u64, &str)]) -> Result<SymbolTable, SymbolError> {
        let mut symbols = Symbols::default();
        for &(name, max, role) in decls {
            let (name, role) = (name.to_owned(), Some(role.to_owned()));
            symbols.push(SymbolDecl { name, min: 0, max, role });
        }
        SymbolTable::new(&symbols)
    }

    #[test]
    fn tied_symbols_are_counted_with_what_they_are_tied_to() {
        let table = table(&[
            ("P", 64, "4*tokens"),
            ("T", 16, "tokens"),
            ("W", 8, "rows.windows"),
            ("V", 16, "2*rows.windows"),
            ("K", 99, "kv.rows"),
        ])
        .unwrap();
        assert_eq!(table.own(), ["rows.windows"]);
        let mut sizes = [0; 5];
        table.fill(&mut sizes, |class| if class == SymbolClass::Tokens { 3 } else { 5 });
        assert_eq!(sizes, [12, 3, 5, 10, 99]);
        assert_eq!(table.count(SymbolClass::Tokens, &sizes), 3);
        assert_eq!(table.count(SymbolClass::Own(0), &sizes), 5);
        assert_eq!(table.count(SymbolClass::Rows, &sizes), 0);
    }

    #[test]
    fn symbols_that_can_not_be_bound_are_named() {
        let unknown = |role: &str| {
            matches!(
                table(&[("X", 1, role)]),
                Err(SymbolError::Unknown { symbol, .. }) if symbol == "X"
            )
        };
        assert!(["token", "rows.", "0*tokens", "x*tokens", "2*kv.rows"].into_iter().all(unknown));
        let error = table(&[("T", 16, "tokens"), ("P", 60, "4*tokens")]).unwrap_err();
        assert!(error.to_string().contains("declare it up to 64"), "{error}");
        let kinds = ["rows.a", "rows.b", "rows.c", "rows.d", "rows.e"].map(|role| ("X", 8, role));
        assert!(matches!(table(&kinds), Err(SymbolError::TooMany { .. })));
    }
}
