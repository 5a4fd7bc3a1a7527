//! What everything of a model on the device is made from: once when it is built, and again when the
//! device was lost.

use super::choose::Choices;
use super::memory::Memory;
use super::options::BuildOptions;
use super::staging::Staging;
use crate::artifact_store::CompiledPieces;
use crate::words::{Ledger, ModelError, Progress, SymbolClass, SymbolTable};
use piecewise_backend::device::Device;
use piecewise_backend::weights::{WeightLayout, WeightSource};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Module;
use std::sync::Arc;

/// What a model is made from.
pub(super) struct Origin {
    pub(super) compiled: CompiledPieces,
    /// The ways that are bound.
    pub(super) choices: Choices,
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

    /// What the weights are made from.
    pub(super) fn weights(&self) -> &dyn WeightSource {
        &*self.weights
    }

    /// Reserves the memory and makes the weights.
    pub(super) fn load<D: Device>(
        &self,
        device: &mut D,
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
    pub(super) fn stage<D: Device>(
        &self,
        device: &mut D,
        module: &Module,
        memory: &Memory,
    ) -> Result<Staging<D>, ModelError> {
        let read = |i: usize| self.read_outputs.contains(&i);
        Staging::new(device, module.graph(), memory, &read, &self.output_bounds)
    }
}

/// Makes the weights; `layouts` are those of each unique piece's.
pub(super) fn load_weights<D: Device>(
    device: &mut D,
    module: &Module,
    memory: &Memory,
    layouts: &[Vec<WeightLayout>],
    source: &dyn WeightSource,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), ModelError> {
    let graph = module.graph();
    let mut of_values = vec![WeightLayout::default(); graph.value_count()];
    if let Some(stitch) = module.stitch() {
        for usage in stitch.uses.values() {
            let inputs = stitch.unique[usage.unique].graph.inputs().len();
            for (i, layout) in layouts[usage.unique.index()].iter().enumerate() {
                of_values[usage.operands[inputs + i].index()] = *layout;
            }
        }
    }
    let total = graph.weights().len();
    for (i, weight) in graph.weights().iter().enumerate() {
        let Some(to) = memory.address(graph, weight.value) else { continue };
        device.materialize(&weight.recipe, of_values[weight.value.index()], source, to)?;
        progress(Progress::Loading { done: i + 1, total });
    }
    Ok(())
}
