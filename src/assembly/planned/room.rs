//! The room that a model has, and what would fit where it has too little.

use super::super::error::AssemblyError;
use super::super::settings::{SHARE_OF_GPU, symbols_of};
use super::Planned;
use crate::device::DeviceSpec;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_passes::plan::ALIGN;
use piecewise_runtime::memory::KvShape;
use piecewise_runtime::words::SymbolClass;

/// What there is where no key says less.
const FREE: &str = "free memory";

impl Planned {
    /// Bytes that the model may take, by the key that says so; the smaller where two do.
    pub(super) fn budget(&self) -> Result<Option<(&'static str, u64)>, AssemblyError> {
        let config = &self.settings.config;
        let share = match self.settings.memory_share() {
            Some(share) => Some(("memory_fraction", (self.free_bytes()? as f64 * share) as u64)),
            None => None,
        };
        let bytes = config.memory_budget.map(|bytes| ("memory_budget", bytes));
        Ok(share.into_iter().chain(bytes).min_by_key(|(_, bytes)| *bytes))
    }

    fn free_bytes(&self) -> Result<u64, AssemblyError> {
        Ok(self.device()?.free_bytes()?)
    }

    /// Rows of the KV pool that `budget` bytes leave, where the graph has one.
    fn rows_within(
        &self,
        budget: (&'static str, u64),
    ) -> Result<Option<(Symbol, u64)>, AssemblyError> {
        let shape = KvShape::of(self.module.graph())?;
        let Some(symbol) = shape.rows else { return Ok(None) };
        let rows = self.symbols.bounds()[symbol.index()];
        let fixed = self.ledger()?.total() - shape.bytes(rows);
        let longest = self.settings.config.max_seq_len;
        Ok(Some((symbol, shape.rows_within(budget, fixed, longest, rows)?)))
    }

    /// Takes a KV pool of the size that the budget leaves. Nothing else that is needed depends on the
    /// pool, artifacts included, so nothing is planned or lowered anew.
    pub(super) fn fit(&mut self, budget: (&'static str, u64)) -> Result<(), AssemblyError> {
        self.artifacts()?;
        match self.rows_within(budget)? {
            Some((symbol, rows)) => {
                self.module.set_state_rows(symbol, rows);
                self.symbols = symbols_of(self.module.graph())?;
                Ok(())
            }
            None if self.ledger()?.total() > budget.1 => Err(self.without_pool(budget)?),
            None => Ok(()),
        }
    }

    /// Where nobody says how much memory the model may take, has the KV pool of a GPU take no more than
    /// what the rest leaves of a share of what is free: sequences then wait for each other, where without
    /// it the model would be refused. Code and graphs, which are not known yet, are for the other share.
    pub(in crate::assembly) fn fit_gpu(&mut self) -> Result<(), AssemblyError> {
        let config = &self.settings.config;
        let is_bounded = config.memory_budget.is_some() || self.settings.memory_share().is_some();
        if is_bounded || !matches!(self.device()?.spec(), DeviceSpec::Cuda(_)) {
            return Ok(());
        }
        let room = (self.free_bytes()? as f64 * SHARE_OF_GPU) as u64;
        if self.ledger()?.total() <= room {
            return Ok(());
        }
        if let Some((symbol, rows)) = self.rows_within(("memory_fraction", room))? {
            self.module.set_state_rows(symbol, rows);
            self.symbols = symbols_of(self.module.graph())?;
        }
        Ok(())
    }

    /// Refuses, before anything is allocated, what the device has no room for.
    pub(super) fn check_room(&self) -> Result<(), AssemblyError> {
        let (needed, free) = (self.ledger()?.total(), self.free_bytes()?);
        if needed <= free {
            return Ok(());
        }
        Err(match self.rows_within((FREE, free))? {
            Some((_, rows)) => pool_does_not_fit(needed, free, rows),
            None => self.without_pool((FREE, free))?,
        })
    }

    /// Why a model without a pool that could be smaller has no room, and what would.
    fn without_pool(
        &self,
        (from, free): (&'static str, u64),
    ) -> Result<AssemblyError, AssemblyError> {
        let ledger = self.ledger()?;
        let needed = ledger.total();
        let step = ledger.slots + ledger.scratch;
        let parts = [
            ("weights", ledger.weights),
            ("a step's arena", step),
            ("states", ledger.states),
            ("code", ledger.modules),
            ("graphs", ledger.graphs),
        ];
        let largest = parts.iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(name, _)| name);
        let named = parts.iter().filter(|(_, bytes)| *bytes > 0);
        let named = Vec::from_iter(named.map(|(name, bytes)| format!("{name} {bytes}"))).join(", ");
        let least = needed - ledger.slots;
        let rows = self.rows_of_step(ledger.slots, free.saturating_sub(least));
        let what = match &rows {
            Some((symbol, most, rows)) => format!(
                "steps of {rows} rows in place of {most} would fit: lower max_num_tokens, or of a graph \
                 of your own the maximum of `{symbol}`"
            ),
            None if needed - ledger.graphs <= free => {
                "without graphs it would fit: capture fewer sizes, or set graph_mode = \"none\""
                    .to_owned()
            }
            None => format!(
                "smaller steps alone do not make it fit: take a smaller dtype, capture fewer sizes, or \
                 leave it more than {least} bytes"
            ),
        };
        let fits = format!("the largest part is {largest} ({named}); {what}");
        Ok(AssemblyError::DoesNotFit { needed, from, free, rows: rows.map_or(0, |it| it.2), fits })
    }

    /// The symbol that a step has the most rows of, how many it may have, and how many it could have if
    /// the slots of its values were to take `room` bytes in place of `bytes`.
    fn rows_of_step(&self, bytes: u64, room: u64) -> Option<(String, u64, u64)> {
        let symbols = self.module.graph().symbols().iter();
        let varies = |symbol| self.symbols.class(symbol) != SymbolClass::Fixed;
        let symbols = symbols.filter(|(symbol, _)| varies(*symbol));
        let (symbol, decl) = symbols.max_by_key(|(symbol, _)| self.symbols.bound(*symbol))?;
        let most = self.symbols.bound(symbol);
        // Each slot is rounded up.
        let slots = self.module.slots().map_or(0, |table| table.slots.len() as u64 + 1);
        let room = u128::from(room.saturating_sub(slots * ALIGN));
        let rows = u128::from(most) * room / u128::from(bytes.max(1));
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        (rows >= decl.min.max(1) && rows < most).then(|| (decl.name.clone(), most, rows))
    }
}

fn pool_does_not_fit(needed: u64, free: u64, rows: u64) -> AssemblyError {
    let fits = format!(
        "a KV pool of {rows} rows would fit: set memory_fraction = 1.0, or lower max_num_seqs or \
         max_seq_len"
    );
    AssemblyError::DoesNotFit { needed, from: FREE, free, rows, fits }
}
