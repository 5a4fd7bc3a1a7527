//! The small model, built.

use super::{Bounds, FakeCompiler, FakeDevice, Faults, fake_module};
use crate::artifact_store::compile_module;
use crate::batch::{RoleMap, probes};
use crate::dispatch::Dispatcher;
use crate::mode::GraphMode;
use crate::model::{
    BuildOptions, CaptureWhen, Checks, CompiledModel, ModelError, OnCaptureFailure,
};
use crate::sizes::SizeList;
use crate::symbols::SymbolTable;
use piecewise_backend::compiler::{NoStore, Store};
use piecewise_backend::tuning::TuneMode;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// How the small model is built.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub bounds: Bounds,
    pub mode: GraphMode,
    pub token_sizes: Vec<u64>,
    pub batch_sizes: Vec<u64>,
    pub max_logit_rows: u64,
    pub checks: Checks,
    pub faults: Faults,
    pub split_support: CaptureSupport,
    pub on_capture_failure: OnCaptureFailure,
    pub capture_exclude: Vec<String>,
    pub piece_support: CaptureSupport,
    pub query_lengths: Vec<u64>,
    pub probes: bool,
    pub capture: CaptureWhen,
    pub strict: bool,
    pub padding: bool,
    pub alternatives: usize,
    pub tune: TuneMode,
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
            faults: Faults::default(),
            split_support: CaptureSupport::Always,
            on_capture_failure: OnCaptureFailure::Error,
            capture_exclude: Vec::new(),
            piece_support: CaptureSupport::Always,
            query_lengths: vec![1],
            probes: false,
            capture: CaptureWhen::Startup,
            strict: false,
            padding: true,
            alternatives: 1,
            tune: TuneMode::Off,
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
        }
    }

    /// The roles of the small model's graph, or of another with the ops of the framework.
    pub(crate) fn roles_of(model: &CompiledModel<FakeDevice>) -> RoleMap {
        let ops = OpRegistry::builtin();
        RoleMap::resolve(model.module().graph(), model.symbols(), &ops).unwrap()
    }

    pub(crate) fn build(&self) -> Result<CompiledModel<FakeDevice>, ModelError> {
        self.build_with(&NoStore)
    }

    pub(crate) fn build_with(
        &self,
        store: &dyn Store,
    ) -> Result<CompiledModel<FakeDevice>, ModelError> {
        let mut options = BuildOptions {
            dispatcher: self.dispatcher(),
            max_logit_rows: self.max_logit_rows,
            read_outputs: vec![0, 1],
            on_capture_failure: self.on_capture_failure,
            capture_attempts: 3,
            capture_exclude: self.capture_exclude.clone(),
            probes: Vec::new(),
            capture: self.capture,
            tune: self.tune,
            strict: self.strict,
            checks: self.checks,
        };
        let mut device = FakeDevice::default();
        device.faults = self.faults.clone();
        let module = Arc::new(fake_module(self.bounds));
        if self.probes {
            let symbols = SymbolTable::new(module.graph().symbols())?;
            let roles = RoleMap::resolve(module.graph(), &symbols, &OpRegistry::builtin()).unwrap();
            options.probes = probes(&roles, &options.dispatcher);
        }
        let compiler = FakeCompiler {
            split_support: self.split_support,
            piece_support: self.piece_support,
            alternatives: self.alternatives,
        };
        let compiled = compile_module(&module, &options.dispatcher, &compiler, store, &mut |_| {})?;
        CompiledModel::build(
            module,
            options,
            compiled,
            store,
            device,
            Arc::new(FakeCompiler::WEIGHTS),
            &mut |_| {},
        )
    }
}
