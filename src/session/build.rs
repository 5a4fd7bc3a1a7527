//! From a graph to a session: plan, compile, load, capture.

use super::any_model::AnyModel;
use super::shapes::StepSymbol;
use super::{InMemoryWeights, Session, SessionError};
use crate::device::{DeviceSpec, OpenDevice, all_threads};
use piecewise_backend::compiler::{Compiler, NoStore};
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::mode::{GraphMode, Level};
use piecewise_runtime::model::{
    BuildOptions, CaptureWhen, Checks, CompiledModel, ModelError, OnCaptureFailure,
};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::sizes::SizeList;
use piecewise_runtime::symbols::SymbolTable;
use std::sync::Arc;

/// How a session is built.
#[derive(Debug)]
#[must_use = "a session is there once it is built"]
pub struct SessionBuilder {
    graph: Graph,
    registry: OpRegistry,
    weights: Weights,
    capture_sizes: Option<Vec<u64>>,
    split_ops: Option<Vec<String>>,
    graph_mode: GraphMode,
    level: Level,
    checks: Checks,
    threads: usize,
    device: DeviceSpec,
}

struct Weights(Box<dyn WeightSource>);

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights").finish_non_exhaustive()
    }
}

impl SessionBuilder {
    pub(super) fn new(graph: Graph) -> Self {
        Self {
            graph,
            registry: OpRegistry::builtin(),
            weights: Weights(Box::new(InMemoryWeights::new())),
            capture_sizes: None,
            split_ops: None,
            graph_mode: GraphMode::Piecewise,
            level: Level::Piecewise,
            checks: Checks::default(),
            threads: all_threads(),
            device: DeviceSpec::Cpu,
        }
    }

    /// Where it runs: the CPU, unless said otherwise.
    pub fn device(mut self, device: DeviceSpec) -> Self {
        self.device = device;
        self
    }

    /// Custom ops and their implementations; without it, the ops of the framework.
    pub fn registry(mut self, registry: OpRegistry) -> Self {
        self.registry = registry;
        self
    }

    /// Where the weights of the graph come from; without it, there are none.
    pub fn weights(mut self, weights: impl WeightSource + 'static) -> Self {
        self.weights = Weights(Box::new(weights));
        self
    }

    /// The sizes, ascending, at which graphs are captured: a step runs at the smallest that holds
    /// its rows, and launched above the largest. Without it, a pattern up to the symbol's bound.
    pub fn capture_sizes(mut self, sizes: impl IntoIterator<Item = u64>) -> Self {
        self.capture_sizes = Some(sizes.into_iter().collect());
        self
    }

    /// The custom ops that the graph is cut at, by name; without it, those whose definitions say
    /// so. An op that is not cut at becomes part of a piece.
    pub fn split_ops<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.split_ops = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Which graphs are captured: pieces, unless said otherwise.
    pub fn graph_mode(mut self, mode: GraphMode) -> Self {
        self.graph_mode = mode;
        self
    }

    /// How far the graph is compiled: all the way, unless said otherwise.
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Checks that run with every step, for debugging.
    pub fn checks(mut self, checks: Checks) -> Self {
        self.checks = checks;
        self
    }

    /// Threads of the CPU; all, unless said otherwise.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Plans, compiles, loads and captures.
    ///
    /// # Errors
    /// When the device can't be opened, a symbol can't be counted by inputs, a size does not fit, a pass fails, an op has no
    /// implementation, a weight is missing or of another shape, or memory is short.
    pub fn build(self) -> Result<Session, SessionError> {
        let split_ops = self.split_ops.as_deref();
        let (module, passes) = plan(self.graph, self.level, split_ops, Vec::new())?;
        let table = SymbolTable::new(module.graph().symbols())
            .map_err(|error| SessionError::Model(Box::new(error.into())))?;
        let symbol = StepSymbol::of(module.graph(), &table)?;
        let max_tokens = symbol.as_ref().map_or(1, StepSymbol::max);
        let options = BuildOptions {
            dispatcher: Dispatcher {
                mode: match self.level {
                    Level::Piecewise => self.graph_mode,
                    Level::Eager | Level::Trace | Level::Compile => GraphMode::None,
                },
                tokens: match self.capture_sizes {
                    None => SizeList::default_pattern(max_tokens),
                    Some(sizes) => {
                        SizeList::new("capture_sizes", sizes, "the symbol's bound", max_tokens)?
                    }
                },
                batches: SizeList::default_pattern(1),
                query_lengths: Vec::new(),
                max_tokens,
                max_rows: 1,
                max_sequences: 1,
                padding: true,
                own: Vec::new(),
            },
            max_logit_rows: 1,
            read_outputs: (0..module.graph().outputs().len()).collect(),
            capture: CaptureWhen::Startup,
            on_capture_failure: OnCaptureFailure::Error,
            tune: TuneMode::default(),
            strict: false,
            checks: self.checks,
        };
        let registry = Arc::new(self.registry);
        let module = Arc::new(module);
        let weights = &*self.weights.0;
        let model = match self.device.open(&registry, self.threads)? {
            OpenDevice::Cpu(device, compiler) => {
                compiled(module, options, &compiler, *device, weights)
            }
            OpenDevice::Cuda(device, compiler) => {
                compiled(module, options, &compiler, *device, weights)
            }
        };
        Ok(Session { model: model?, symbol, passes })
    }
}

fn compiled<D: Device + 'static>(
    module: Arc<Module>,
    options: BuildOptions,
    compiler: &dyn Compiler,
    device: D,
    weights: &dyn WeightSource,
) -> Result<Box<dyn AnyModel>, Box<ModelError>> {
    let build = CompiledModel::build;
    let model = build(module, options, compiler, &NoStore, device, weights, &mut |_| {})?;
    Ok(Box::new(model))
}
