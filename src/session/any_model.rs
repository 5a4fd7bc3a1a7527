//! A compiled model on whatever device.

use super::Outputs;
use piecewise_backend::device::Device;
use piecewise_ir::module::Module;
use piecewise_runtime::model::{CompiledModel, ModelError, StepData, StepReport};
use piecewise_runtime::stats::Statistics;
use piecewise_runtime::symbols::SymbolTable;

/// What a session needs of a compiled model, without its device's type.
pub(super) trait AnyModel: std::fmt::Debug + Send {
    fn module(&self) -> &Module;
    fn symbols(&self) -> &SymbolTable;
    fn last_step(&self) -> Option<StepReport>;
    fn statistics(&self) -> &Statistics;
    fn describe_device(&self) -> String;

    /// Runs a step and copies its outputs.
    fn step(&mut self, step: &StepData<'_>) -> Result<Outputs, Box<ModelError>>;
}

impl<D: Device> AnyModel for CompiledModel<D> {
    fn module(&self) -> &Module {
        self.module()
    }

    fn symbols(&self) -> &SymbolTable {
        self.symbols()
    }

    fn last_step(&self) -> Option<StepReport> {
        self.last_step()
    }

    fn statistics(&self) -> &Statistics {
        self.statistics()
    }

    fn describe_device(&self) -> String {
        self.device().describe()
    }

    fn step(&mut self, step: &StepData<'_>) -> Result<Outputs, Box<ModelError>> {
        let ticket = self.submit(step)?;
        Ok(Outputs::copied(&self.read(&ticket)?, step.counts)?)
    }
}
