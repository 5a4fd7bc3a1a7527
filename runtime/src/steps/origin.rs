//! What everything of a model on the device is made from: once when it is built, and again when the
//! device was lost.

use super::options::BuildOptions;
use super::staging::Staging;
use crate::device::{Choices, Memory, load_weights};
use crate::store::CompiledPieces;
use crate::words::{Ledger, ModelError, Progress, SymbolClass, SymbolTable};
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use std::sync::Arc;

/// What a model is made from.
pub(crate) struct Origin {
    pub(crate) compiled: CompiledPieces,
    /// The ways that are bound.
    pub(crate) choices: Choices,
    pub(super) capture_exclude: Vec<String>,
    /// Whether programs can't run while states have no backing.
    pub(super) backed_early: bool,
    pub(super) max_logit_rows: u64,
    pub(super) ledger: Ledger,
    weights: Arc<dyn WeightSource>,
    read_outputs: Vec<usize>,
    /// The largest counts of the rows that are read back.
    output_bounds: Vec<u64>,
}

impl Origin {
    pub(super) fn new(
        options: &BuildOptions,
        symbols: &SymbolTable,
        ledger: Ledger,
        compiled: CompiledPieces,
        weights: Arc<dyn WeightSource>,
    ) -> Self {
        let mut max_logit_rows = options.max_logit_rows;
        let mut output_bounds = symbols.bounds().to_vec();
        for (i, bound) in output_bounds.iter_mut().enumerate() {
            if symbols.at(i).class == SymbolClass::Rows {
                let times = symbols.at(i).times;
                max_logit_rows = max_logit_rows.max(*bound / times);
                *bound = max_logit_rows * times;
            }
        }
        Self {
            compiled,
            choices: Choices::default(),
            capture_exclude: options.capture_exclude.clone(),
            backed_early: false,
            max_logit_rows,
            ledger,
            weights,
            read_outputs: options.read_outputs.clone(),
            output_bounds,
        }
    }

    /// Whether states have backing before programs run: what is measured or probed runs all its rows,
    /// which a warm-up and a capture do not.
    pub(crate) fn backs_early(&self, options: &BuildOptions) -> bool {
        let runs_rows = options.tune == TuneMode::Measure || !options.probes.is_empty();
        self.backed_early || runs_rows
    }

    /// What the weights are made from.
    pub(super) fn weights(&self) -> &dyn WeightSource {
        &*self.weights
    }

    /// Reserves the memory and makes the weights.
    pub(super) fn load(
        &self,
        device: &mut dyn Device,
        module: &Module,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Memory, ModelError> {
        let layout = module.layout().ok_or(ModelError::Unplanned { part: "layout" })?;
        let memory = Memory::reserve(device, module, layout, self.ledger)?;
        let (layouts, weights) = (&self.compiled.layouts, &*self.weights);
        load_weights(device, module, &memory, layouts, weights, progress)?;
        let loaded = device.record(None)?;
        device.wait(&loaded)?;
        Ok(memory)
    }

    /// Makes the host blocks that steps are staged in.
    pub(super) fn stage(
        &self,
        device: &mut dyn Device,
        module: &Module,
        memory: &Memory,
    ) -> Result<Staging, ModelError> {
        let read = |i: usize| self.read_outputs.contains(&i);
        Staging::new(device, module.graph(), memory, &read, &self.output_bounds)
    }
}
