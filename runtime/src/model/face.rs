//! A compiled model whose device is chosen at run time.

use super::{
    BuildTimes, CompiledModel, Ledger, ModelError, Outputs, StepData, StepReport, StepTimes,
    SuspendedWeights, Ticket,
};
use crate::dispatch::Dispatcher;
use crate::mode::GraphMode;
use crate::stats::Statistics;
use crate::symbols::SymbolTable;
use piecewise_backend::device::Device;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use std::any::Any;

/// [`CompiledModel`] without its device in its type.
pub trait Model: Any + std::fmt::Debug + Send {
    /// [`CompiledModel::module`].
    fn module(&self) -> &Module;

    /// [`CompiledModel::symbols`].
    fn symbols(&self) -> &SymbolTable;

    /// [`CompiledModel::dispatcher`].
    fn dispatcher(&self) -> &Dispatcher;

    /// [`CompiledModel::statistics`].
    fn statistics(&self) -> &Statistics;

    /// [`CompiledModel::build_times`].
    fn build_times(&self) -> BuildTimes;

    /// Bytes of everything on the device.
    fn ledger(&self) -> Ledger;

    /// [`CompiledModel::captured_graphs`].
    fn captured_graphs(&self) -> usize;

    /// [`CompiledModel::lowered_mode`].
    fn lowered_mode(&self) -> Option<&str>;

    /// [`Device::describe`].
    fn describe_device(&self) -> String;

    /// [`CompiledModel::last_step`].
    fn last_step(&self) -> Option<StepReport>;

    /// [`CompiledModel::set_graph_mode`].
    ///
    /// # Errors
    /// As there.
    fn set_graph_mode(&mut self, mode: GraphMode) -> Result<(), ModelError>;

    /// [`CompiledModel::set_launches_only`].
    fn set_launches_only(&mut self, launches_only: bool);

    /// [`CompiledModel::time_steps`].
    fn time_steps(&mut self, by_device: bool);

    /// [`CompiledModel::step_times`].
    fn step_times(&self, ticket: &Ticket) -> Option<StepTimes>;

    /// [`CompiledModel::enable_graphs`].
    ///
    /// # Errors
    /// As there.
    fn enable_graphs(&mut self) -> Result<usize, ModelError>;

    /// [`CompiledModel::invalidate_graphs`].
    fn invalidate_graphs(&mut self);

    /// [`CompiledModel::recover`].
    ///
    /// # Errors
    /// As there.
    fn recover(&mut self) -> Result<(), ModelError>;

    /// [`CompiledModel::suspend`].
    ///
    /// # Errors
    /// As there.
    fn suspend(&mut self, weights: SuspendedWeights) -> Result<(), ModelError>;

    /// [`CompiledModel::resume`].
    ///
    /// # Errors
    /// As there.
    fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), ModelError>;

    /// [`CompiledModel::submit`].
    ///
    /// # Errors
    /// As there.
    fn submit(&mut self, step: &StepData<'_>) -> Result<Ticket, ModelError>;

    /// [`CompiledModel::read`].
    ///
    /// # Errors
    /// As there.
    fn read(&mut self, ticket: &Ticket) -> Result<Outputs<'_>, ModelError>;
}

impl<D: Device> Model for CompiledModel<D> {
    fn module(&self) -> &Module {
        self.module()
    }

    fn symbols(&self) -> &SymbolTable {
        self.symbols()
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher()
    }

    fn statistics(&self) -> &Statistics {
        self.statistics()
    }

    fn build_times(&self) -> BuildTimes {
        self.build_times()
    }

    fn ledger(&self) -> Ledger {
        self.memory().ledger
    }

    fn captured_graphs(&self) -> usize {
        self.captured_graphs()
    }

    fn lowered_mode(&self) -> Option<&str> {
        self.lowered_mode()
    }

    fn describe_device(&self) -> String {
        self.device().describe()
    }

    fn last_step(&self) -> Option<StepReport> {
        self.last_step()
    }

    fn set_graph_mode(&mut self, mode: GraphMode) -> Result<(), ModelError> {
        self.set_graph_mode(mode, &mut |_| {}).map(drop)
    }

    fn time_steps(&mut self, by_device: bool) {
        self.time_steps(by_device);
    }

    fn step_times(&self, ticket: &Ticket) -> Option<StepTimes> {
        self.step_times(ticket)
    }

    fn set_launches_only(&mut self, launches_only: bool) {
        self.set_launches_only(launches_only);
    }

    fn enable_graphs(&mut self) -> Result<usize, ModelError> {
        self.enable_graphs()
    }

    fn invalidate_graphs(&mut self) {
        self.invalidate_graphs();
    }

    fn recover(&mut self) -> Result<(), ModelError> {
        self.recover()
    }

    fn suspend(&mut self, weights: SuspendedWeights) -> Result<(), ModelError> {
        self.suspend(weights)
    }

    fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), ModelError> {
        self.resume(weights)
    }

    fn submit(&mut self, step: &StepData<'_>) -> Result<Ticket, ModelError> {
        self.submit(step)
    }

    fn read(&mut self, ticket: &Ticket) -> Result<Outputs<'_>, ModelError> {
        self.read(ticket)
    }
}
