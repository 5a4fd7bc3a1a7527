//! The small model, built.

use super::{Bounds, FakeCompiler, FakeDevice, Faults, Planted, fake_module};
use crate::batch::{RoleMap, full_steps, probes};
use crate::dispatch::{Dispatcher, SizeRules};
use crate::steps::{BuildOptions, CompiledModel};
use crate::store::compile_module;
use crate::words::sizes::SizeList;
use crate::words::{
    CaptureWhen, Checks, GraphMode, ModelError, OnCaptureFailure, Progress, SymbolTable,
};
use piecewise_backend::compiler::{NoStore, Store};
use piecewise_backend::tuning::TuneMode;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;
use std::time::Duration;

/// How the small model is built.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub bounds: Bounds,
    pub mode: GraphMode,
    pub token_sizes: Vec<u64>,
    pub batch_sizes: Vec<u64>,
    pub max_logit_rows: u64,
    pub checks: Checks,
    pub rules: SizeRules,
    pub faults: Faults,
    pub split_support: CaptureSupport,
    pub on_capture_failure: OnCaptureFailure,
    pub recapture_limit: u32,
    pub capture_exclude: Vec<String>,
    pub piece_support: CaptureSupport,
    pub query_lengths: Vec<u64>,
    pub probes: bool,
    pub capture: CaptureWhen,
    pub strict: bool,
    pub padding: bool,
    pub planted: Planted,
    pub tune: TuneMode,
    pub tune_budget: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            mode: GraphMode::FullAndPiecewise,
            token_sizes: vec![1, 2, 4, 8],
            batch_sizes: vec![1, 2, 4],
            max_logit_rows: 16,
            checks: Checks { poison: true, addresses: true, compare: false },
            rules: SizeRules::default(),
            faults: Faults::default(),
            split_support: CaptureSupport::Always,
            on_capture_failure: OnCaptureFailure::Error,
            recapture_limit: 128,
            capture_exclude: Vec::new(),
            piece_support: CaptureSupport::Always,
            query_lengths: vec![1],
            probes: false,
            capture: CaptureWhen::Startup,
            strict: false,
            padding: true,
            planted: Planted::default(),
            tune: TuneMode::Off,
            tune_budget: Duration::MAX,
        }
    }
}

impl Setup {
    pub(crate) fn dispatcher(&self) -> Dispatcher {
        let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 1 << 20);
        Dispatcher {
            mode: self.mode,
            tokens: list(&self.token_sizes).unwrap(),
            batches: list(&self.batch_sizes).unwrap(),
            query_lengths: self.query_lengths.clone(),
            max_tokens: self.bounds.tokens,
            max_rows: self.bounds.rows,
            max_sequences: self.bounds.sequences,
            padding: self.padding,
            own: Vec::new(),
            rules: self.rules.clone(),
        }
    }

    /// The roles of the small model's graph, or of another with the ops of the framework.
    pub(crate) fn roles_of(model: &CompiledModel) -> RoleMap {
        let ops = OpRegistry::builtin();
        RoleMap::resolve(model.module().graph(), model.symbols(), &ops).unwrap()
    }

    pub(crate) fn compiler(&self) -> FakeCompiler {
        FakeCompiler {
            split_support: self.split_support,
            piece_support: self.piece_support,
            planted: self.planted.clone(),
        }
    }

    pub(crate) fn build(&self) -> Result<CompiledModel, ModelError> {
        self.build_with(&NoStore)
    }

    pub(crate) fn build_with(&self, store: &dyn Store) -> Result<CompiledModel, ModelError> {
        self.build_telling(store, &mut |_| {})
    }

    /// Also tells what the build tells, but for what compiling does.
    pub(crate) fn build_telling(
        &self,
        store: &dyn Store,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<CompiledModel, ModelError> {
        let mut options = BuildOptions {
            dispatcher: self.dispatcher(),
            max_logit_rows: self.max_logit_rows,
            read_outputs: vec![0, 1],
            on_capture_failure: self.on_capture_failure,
            capture_attempts: 3,
            recapture_limit: self.recapture_limit,
            capture_exclude: self.capture_exclude.clone(),
            probes: Vec::new(),
            capture: self.capture,
            tune: self.tune,
            tune_budget: self.tune_budget,
            tuning_steps: Vec::new(),
            strict: self.strict,
            checks: self.checks,
            measure_padding: false,
        };
        let mut device = FakeDevice::default();
        device.faults = self.faults.clone();
        device.planted = self.planted.clone();
        let module = Arc::new(fake_module(self.bounds));
        let symbols = SymbolTable::new(module.graph().symbols())?;
        let roles = RoleMap::resolve(module.graph(), &symbols, &OpRegistry::builtin()).unwrap();
        if self.probes {
            options.probes = probes(&roles, &options.dispatcher);
        }
        if self.tune == TuneMode::Measure {
            options.tuning_steps = full_steps(&roles, &options.dispatcher);
        }
        let compiler = self.compiler();
        let compiled = compile_module(&module, &options.dispatcher, &compiler, store, &mut |_| {})?;
        CompiledModel::build(
            module,
            options,
            compiled,
            store,
            Box::new(device),
            Arc::new(FakeCompiler::WEIGHTS),
            progress,
        )
    }
}
