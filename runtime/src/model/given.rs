//! Inputs of a step that are not filled where they are to lie: what the host may read, checks, or stages in
//! several calls is filled here first.

use super::staging::StagedInput;
use crate::words::{InputSource, ModelError, StepData};
use smallvec::SmallVec;

/// The inputs of a step, filled by their source; memory stays from step to step.
#[derive(Default, Debug)]
pub(super) struct GivenInputs {
    inputs: Vec<Vec<u8>>,
    /// How many bytes of each are given.
    given: Vec<usize>,
    short_rows: Vec<(usize, u64)>,
}

impl GivenInputs {
    /// Fills all inputs at the true counts.
    pub(super) fn fill(
        &mut self,
        source: &dyn InputSource,
        inputs: &[StagedInput],
        counts: &[u64],
    ) -> Result<(), ModelError> {
        self.inputs.resize_with(inputs.len(), Vec::new);
        self.given.clear();
        self.short_rows.clear();
        for (i, (input, bytes)) in inputs.iter().zip(&mut self.inputs).enumerate() {
            let all = input.ty.bytes(counts) as usize;
            if bytes.len() < all {
                bytes.resize(all, 0);
            }
            let columns = source.fill(i, &mut bytes[..all])?;
            self.given.push(input.rows(columns, counts)?.bytes() as usize);
            self.short_rows.extend(columns.map(|columns| (i, columns)));
        }
        Ok(())
    }

    /// Calls `run` with the step that has them.
    pub(super) fn with<R>(&self, step: &StepData<'_>, run: impl FnOnce(&StepData<'_>) -> R) -> R {
        let inputs = self.inputs.iter().zip(&self.given).map(|(bytes, &given)| &bytes[..given]);
        let inputs: SmallVec<[&[u8]; 32]> = inputs.collect();
        let short_rows = &self.short_rows;
        run(&StepData { inputs: &inputs, parts: &[], short_rows, source: None, ..*step })
    }
}
