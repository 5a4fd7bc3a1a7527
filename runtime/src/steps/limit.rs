//! What a model may take, held to also by the graphs that come after its start.

use super::compiled::CompiledModel;
use crate::dispatch::Dispatcher;
use crate::words::{GraphMode, Ledger, ModelError};

impl CompiledModel {
    /// Refuses from now on a mode or a size whose code and graphs would make the ledger's sum more than so
    /// many bytes, which come from the key `from`; what is there stays.
    pub fn limit_memory(&mut self, from: &'static str, bytes: u64) {
        self.limit = Some((from, bytes));
    }

    /// The ledger with the code that is there and the graphs of a dispatcher.
    pub(crate) fn ledger_of(&self, dispatcher: &Dispatcher) -> Ledger {
        let compiled = &self.origin.compiled;
        let Some(stitch) = self.module.stitch() else { return self.memory.ledger };
        let lowered = stitch.unique.keys().zip(&compiled.artifacts);
        let lowered = lowered.flat_map(|(unique, list)| list.iter().map(move |a| (unique, a)));
        let (module, symbols, footprint) = (&self.module, &self.symbols, compiled.footprint);
        self.memory.ledger.with_code(module, symbols, dispatcher, lowered, footprint)
    }

    pub(crate) fn set_ledger(&mut self, ledger: Ledger) {
        self.memory.ledger = ledger;
        self.origin.ledger = ledger;
    }

    /// The ledger with the graphs of a mode.
    ///
    /// # Errors
    /// When it passes the limit, with the highest mode below that does not.
    pub(super) fn ledger_within(&self, mode: GraphMode) -> Result<Ledger, ModelError> {
        let of_mode = |mode| self.ledger_of(&Dispatcher { mode, ..self.dispatcher.clone() });
        let ledger = of_mode(mode);
        let checked = self.check_limit(&ledger, || format!("graph mode {}", mode.name()));
        let Err(ModelError::BeyondLimit { what, needed, from, limit, fits }) = checked else {
            return Ok(ledger);
        };
        let can = |lower: &GraphMode| {
            *lower != mode
                && self.supported_mode(*lower).1.is_none()
                && of_mode(*lower).total() <= limit
        };
        let lower = mode.and_lower().find(can);
        let fits = lower.map_or(fits.clone(), |lower| {
            format!("graph mode {} would fit, or {fits}", lower.name())
        });
        Err(ModelError::BeyondLimit { what, needed, from, limit, fits })
    }

    pub(super) fn check_limit(
        &self,
        ledger: &Ledger,
        what: impl FnOnce() -> String,
    ) -> Result<(), ModelError> {
        match self.limit {
            Some((from, limit)) if ledger.total() > limit => {
                let fits = "capture fewer sizes, or raise it to that".to_owned();
                let (what, needed) = (what(), ledger.total());
                Err(ModelError::BeyondLimit { what, needed, from, limit, fits })
            }
            _ => Ok(()),
        }
    }
}
