//! The check of a step's pages: its inputs by their roles.

use super::CompiledModel;
use crate::checks::PagesOfStep;
use crate::words::{ModelError, StepData, roles};
use piecewise_backend::device::Device;

impl<D: Device> CompiledModel<D> {
    /// Holds what a step says about pages against each other, where the graph has such inputs.
    ///
    /// # Errors
    /// What does not fit.
    pub(super) fn check_pages(&self, step: &StepData<'_>) -> Result<(), ModelError> {
        let graph = self.module.graph();
        let inputs = graph.inputs();
        let place = |role: &str| inputs.iter().position(|i| i.role.as_deref() == Some(role));
        let numbers = |role: &str| -> Option<Vec<i32>> {
            let bytes = step.inputs.get(place(role)?)?.chunks_exact(4);
            Some(bytes.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        let Some(table) = place(roles::KV_BLOCK_TABLE) else { return Ok(()) };
        let all = graph.ty(inputs[table].value).shape.last().and_then(|dim| dim.as_constant());
        let columns = step.columns(table).or(all).unwrap_or(0) as usize;
        let found = [
            roles::TOKEN_POSITIONS,
            roles::KV_SLOTS,
            roles::QUERY_STARTS,
            roles::QUERY_LENGTHS,
            roles::KV_LENGTHS,
            roles::KV_BLOCK_TABLE,
        ]
        .map(numbers);
        let [Some(positions), Some(slots), Some(starts), Some(queries), Some(lengths), Some(table)] =
            &found
        else {
            return Ok(());
        };
        PagesOfStep { positions, slots, starts, queries, lengths, table, columns }.check()?;
        Ok(())
    }
}
