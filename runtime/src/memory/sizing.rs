//! How many rows of the KV pool fit in what a memory budget leaves.

use crate::words::roles;
use piecewise_ir::entity::Symbol;
use piecewise_ir::graph::Graph;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_passes::plan::ALIGN;

/// Why no KV pool can be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum SizingError {
    /// A KV state that does not have the pool's rows outermost.
    #[error(
        "state \"{state}\" has the role \"kv.cache\" but not the rows of the pool (a symbol of \
         role \"kv.rows\") as its outermost axis"
    )]
    NoRows { state: String },
    /// KV states over different symbols.
    #[error("state \"{state}\" has other pool rows than \"{first}\"; one symbol must serve all")]
    TwoPools { state: String, first: String },
    /// The budget leaves too little.
    #[error(
        "{from} = {budget} bytes leaves {left} for KV after {fixed} bytes of weights, arena, other \
         states, code and graphs, but one sequence of max_seq_len = {max_seq_len} needs {needed}; \
         {fits}, or at least {} bytes are needed", fixed + needed
    )]
    TooLittle {
        /// The key that says how much there is, with what it comes from.
        from: &'static str,
        budget: u64,
        /// What would fit, in words.
        fits: String,
        /// Bytes of everything but KV.
        fixed: u64,
        /// What is left in bytes.
        left: u64,
        /// The longest sequence in rows.
        max_seq_len: u64,
        /// Bytes that one sequence of that length needs.
        needed: u64,
    },
}

/// The states that hold keys and values: one row of each for every token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// The symbol that counts the rows of the pool; `None` where the graph keeps no KV.
    pub rows: Option<Symbol>,
    /// Bytes of one row of each state.
    pub row_bytes: Vec<u64>,
}

impl KvShape {
    /// Reads the states of role `kv.cache`.
    ///
    /// # Errors
    /// When one has no pool rows, or rows of another pool.
    pub fn of(graph: &Graph) -> Result<Self, SizingError> {
        let bounds: Vec<u64> = graph.symbols().values().map(|decl| decl.max).collect();
        let mut shape = Self { rows: None, row_bytes: Vec::new() };
        let mut first = "";
        for state in graph.states().iter().filter(|s| s.role.as_deref() == Some(roles::KV_CACHE)) {
            let ty = graph.ty(state.value);
            let rows = ty.outer_symbol().filter(|&symbol| {
                let decl = graph.symbols().get(symbol);
                decl.is_some_and(|decl| decl.role.as_deref() == Some(roles::KV_ROWS))
            });
            let rows = rows.ok_or_else(|| SizingError::NoRows { state: state.name.clone() })?;
            match shape.rows {
                None => first = &state.name,
                Some(pool) if pool == rows => {}
                Some(_) => {
                    let (state, first) = (state.name.clone(), first.to_owned());
                    return Err(SizingError::TwoPools { state, first });
                }
            }
            shape.rows = Some(rows);
            shape.row_bytes.push(ty.row().bytes(&bounds));
        }
        Ok(shape)
    }

    /// Bytes that `rows` rows take, alignment included; saturating.
    pub fn bytes(&self, rows: u64) -> u64 {
        let state = |row: &u64| row.saturating_mul(rows).checked_next_multiple_of(ALIGN);
        self.row_bytes.iter().map(|row| state(row).unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
    }

    /// The most rows, in whole pages and at most `most`, that fit in `budget` bytes, which come from
    /// the key `from`, beside `fixed` bytes of everything else.
    ///
    /// # Errors
    /// When one sequence of `max_seq_len` rows does not fit.
    pub fn rows_within(
        &self,
        (from, budget): (&'static str, u64),
        fixed: u64,
        max_seq_len: u64,
        most: u64,
    ) -> Result<u64, SizingError> {
        let left = budget.saturating_sub(fixed);
        let least = max_seq_len.next_multiple_of(PAGE_ROWS);
        let needed = self.bytes(least);
        if fixed > budget || needed > left {
            let fits = match self.pages_within(left, 0, least / PAGE_ROWS) {
                0 => "no length fits: lower max_num_tokens".to_owned(),
                pages => format!("max_seq_len = {} would fit", pages * PAGE_ROWS),
            };
            let too_little =
                SizingError::TooLittle { from, budget, fits, fixed, left, max_seq_len, needed };
            return Err(too_little);
        }
        let least = least / PAGE_ROWS;
        Ok(self.pages_within(left, least, (most / PAGE_ROWS).max(least)) * PAGE_ROWS)
    }

    /// The most pages from `low`, which fit, to `high` that fit in `left` bytes. Alignment makes bytes
    /// a step function of rows, so the bound is searched for.
    fn pages_within(&self, left: u64, mut low: u64, mut high: u64) -> u64 {
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.bytes(middle * PAGE_ROWS) <= left {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bounds, fake_module};
    use crate::words::Ledger;
    use piecewise_ir::module::Module;
    use proptest::prelude::*;

    fn shape(row_bytes: Vec<u64>) -> KvShape {
        KvShape { rows: None, row_bytes }
    }

    proptest! {
        #[test]
        fn the_next_page_would_not_fit(
            row_bytes in prop::collection::vec(1u64..3000, 1..5),
            budget in 0u64..4_000_000,
            fixed in 0u64..1_000_000,
            max_seq_len in 1u64..400,
        ) {
            let kv = shape(row_bytes);
            match kv.rows_within(("memory_budget", budget), fixed, max_seq_len, u64::MAX / 2) {
                Ok(rows) => {
                    prop_assert_eq!(rows % PAGE_ROWS, 0);
                    prop_assert!(rows >= max_seq_len);
                    prop_assert!(fixed + kv.bytes(rows) <= budget);
                    prop_assert!(fixed + kv.bytes(rows + PAGE_ROWS) > budget);
                }
                Err(error) => {
                    let least = max_seq_len.next_multiple_of(PAGE_ROWS);
                    prop_assert!(fixed + kv.bytes(least) > budget);
                    prop_assert!(error.to_string().contains("memory_budget"));
                }
            }
        }
    }

    #[test]
    fn a_model_of_these_rows_takes_the_budget_to_the_page() {
        let mut bounds = Bounds::default();
        let module = fake_module(bounds);
        let kv = KvShape::of(module.graph()).unwrap();
        let ledger = |module: &Module| {
            let layout = module.layout().unwrap();
            Ledger::new(module.graph(), layout, 1000, &layout.bounds)
        };
        let fixed = ledger(&module).total() - kv.bytes(bounds.kv_rows);
        bounds.kv_rows =
            kv.rows_within(("memory_budget", fixed + 10_000), fixed, 100, 1 << 20).unwrap();
        assert_eq!(bounds.kv_rows, 10_000 / 256 * 64);
        let module = fake_module(bounds);
        assert_eq!(ledger(&module).total(), fixed + kv.bytes(bounds.kv_rows));
    }

    #[test]
    fn no_more_rows_than_can_be_used() {
        assert_eq!(shape(vec![4]).rows_within(("memory_budget", 1 << 40), 0, 10, 64), Ok(64));
    }
}
