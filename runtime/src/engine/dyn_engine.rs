//! An engine whose device is chosen at run time.

use super::{Engine, EngineError, EngineOptions, Event, Request, RequestId, StepObserver};
use crate::dispatch::Dispatcher;
use crate::model::Ledger;
use crate::stats::Statistics;
use piecewise_backend::device::Device;
use piecewise_ir::module::Module;

/// [`Engine`] without its device in its type.
pub trait DynEngine: std::fmt::Debug + Send {
    /// [`Engine::add`].
    ///
    /// # Errors
    /// As there.
    fn add(&mut self, request: Request) -> Result<RequestId, EngineError>;

    /// [`Engine::step`].
    ///
    /// # Errors
    /// As there.
    fn step(&mut self, events: &mut Vec<Event>) -> Result<bool, EngineError>;

    /// [`Engine::logits`].
    ///
    /// # Errors
    /// As there.
    fn logits(&mut self, ids: &[u32], rows: &mut dyn FnMut(u64, &[u8])) -> Result<(), EngineError>;

    /// [`Engine::observe`].
    fn observe(&mut self, observer: StepObserver);

    /// The bounds in force.
    fn options(&self) -> &EngineOptions;

    /// How often a sequence lost its pages and was computed again.
    fn preemptions(&self) -> u64;

    /// What the model counted.
    fn statistics(&self) -> &Statistics;

    /// What the model holds in memory.
    fn ledger(&self) -> Ledger;

    /// The model's module: graph, pieces and plan.
    fn module(&self) -> &Module;

    /// The lists and bounds of dispatch, with the mode in force.
    fn dispatcher(&self) -> &Dispatcher;

    /// Why the graph mode is not the one asked for, where it is not.
    fn lowered_mode(&self) -> Option<&str>;

    /// Graphs captured so far.
    fn captured_graphs(&self) -> usize;

    /// The device, for people.
    fn describe_device(&self) -> String;
}

impl<D: Device> DynEngine for Engine<D> {
    fn add(&mut self, request: Request) -> Result<RequestId, EngineError> {
        Engine::add(self, request)
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<bool, EngineError> {
        Engine::step(self, events)
    }

    fn logits(&mut self, ids: &[u32], rows: &mut dyn FnMut(u64, &[u8])) -> Result<(), EngineError> {
        Engine::logits(self, ids, rows)
    }

    fn observe(&mut self, observer: StepObserver) {
        Engine::observe(self, observer);
    }

    fn options(&self) -> &EngineOptions {
        Engine::options(self)
    }

    fn preemptions(&self) -> u64 {
        Engine::preemptions(self)
    }

    fn statistics(&self) -> &Statistics {
        self.model().statistics()
    }

    fn ledger(&self) -> Ledger {
        self.model().memory().ledger
    }

    fn module(&self) -> &Module {
        self.model().module()
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.model().dispatcher()
    }

    fn lowered_mode(&self) -> Option<&str> {
        self.model().lowered_mode()
    }

    fn captured_graphs(&self) -> usize {
        self.model().captured_graphs()
    }

    fn describe_device(&self) -> String {
        self.model().device().describe()
    }
}
