//! A small decoder of random weights, built for a target.

use crate::target::Target;
use piecewise::models::{DecoderBounds, DecoderConfig, decoder};
use piecewise_backend::compiler::Compiler;
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::NormalWeights;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::{Probe, RoleMap, probes};
use piecewise_runtime::dispatch::{Dispatcher, SizeRules};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{
    CaptureWhen, Checks, CompileLevel, GraphMode, ModelError, OnCaptureFailure, SymbolTable,
};
use std::path::Path;
use std::sync::Arc;

/// Ids are below this.
pub(crate) const VOCAB: u32 = 61;

/// The weights of a small decoder.
pub(crate) const WEIGHTS: NormalWeights = NormalWeights { std: 0.4, seed: 7 };

/// How a small decoder is made and built.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub layers: usize,
    pub head_dim: u64,
    pub dtype: DType,
    pub max_tokens: u64,
    pub max_sequences: u64,
    pub max_rows: u64,
    pub max_length: u64,
    /// Rows of the KV pool; enough for every sequence if unset.
    pub kv_rows: Option<u64>,
    pub mode: GraphMode,
    pub sizes: Vec<u64>,
    pub batches: Vec<u64>,
    pub query_lengths: Vec<u64>,
    pub level: CompileLevel,
    pub exclude: Vec<String>,
    pub threads: usize,
    pub checks: Checks,
    pub split_ops: Option<Vec<String>>,
    pub sampling_controls: bool,
    pub capture: CaptureWhen,
    pub on_capture_failure: OnCaptureFailure,
    pub specialized: Vec<u64>,
    pub measure_padding: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            layers: 2,
            head_dim: 8,
            dtype: DType::F32,
            max_tokens: 64,
            max_sequences: 4,
            max_rows: 4,
            max_length: 96,
            kv_rows: None,
            mode: GraphMode::FullAndPiecewise,
            sizes: vec![1, 2, 3, 5, 8, 16, 17, 48],
            batches: vec![1, 2, 3, 4],
            query_lengths: vec![1],
            level: CompileLevel::Piecewise,
            exclude: Vec::new(),
            threads: 1,
            checks: Checks::default(),
            split_ops: None,
            sampling_controls: false,
            capture: CaptureWhen::Startup,
            on_capture_failure: OnCaptureFailure::Error,
            specialized: Vec::new(),
            measure_padding: false,
        }
    }
}

impl Setup {
    pub(crate) fn graph(&self) -> Graph {
        let config = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": self.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": self.head_dim,
            "vocab_size": VOCAB,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": true,
            "torch_dtype": if self.dtype == DType::F32 { "float32" } else { "bfloat16" },
        });
        let config = DecoderConfig::parse(config.to_string().as_bytes(), Path::new("config.json"));
        let bounds = DecoderBounds {
            activations: self.dtype,
            max_tokens: self.max_tokens,
            max_rows: self.max_rows,
            max_sequences: self.max_sequences,
            max_length: self.max_length,
            state_slots: 0,
            embedding_rows: 0,
            sampling_controls: self.sampling_controls,
            kv_rows: self
                .kv_rows
                .unwrap_or(self.max_length.next_multiple_of(16) * self.max_sequences),
        };
        decoder(&config.unwrap(), &bounds, |_| None).unwrap()
    }

    pub(crate) fn module(&self) -> Module {
        plan(self.graph(), self.level, self.split_ops.as_deref(), Vec::new()).unwrap().0
    }

    fn dispatcher(&self) -> Dispatcher {
        let list = |name, sizes: &[u64], bound| {
            SizeList::new(name, sizes.to_vec(), "bound", bound).unwrap()
        };
        Dispatcher {
            mode: self.mode,
            tokens: list("tokens", &self.sizes, self.max_tokens),
            batches: list("batches", &self.batches, self.max_sequences),
            query_lengths: self.query_lengths.clone(),
            max_tokens: self.max_tokens,
            max_rows: self.max_rows,
            max_sequences: self.max_sequences,
            padding: true,
            own: Vec::new(),
            rules: SizeRules { specialized: self.specialized.clone(), ..SizeRules::default() },
        }
    }

    pub(crate) fn options(&self) -> BuildOptions {
        BuildOptions {
            dispatcher: self.dispatcher(),
            max_logit_rows: self.max_rows,
            read_outputs: (0..2 + usize::from(self.sampling_controls)).collect(),
            capture: self.capture,
            on_capture_failure: self.on_capture_failure,
            capture_attempts: 3,
            recapture_limit: 128,
            capture_exclude: self.exclude.clone(),
            probes: self.probes(),
            tune: TuneMode::default(),
            tune_budget: std::time::Duration::ZERO,
            tuning_steps: Vec::new(),
            strict: false,
            checks: self.checks,
            measure_padding: self.measure_padding,
        }
    }

    /// Probes of the graph, in the modes that capture.
    fn probes(&self) -> Vec<Probe> {
        let graph = self.graph();
        let symbols = SymbolTable::new(graph.symbols()).unwrap();
        let roles = RoleMap::resolve(&graph, &symbols, &OpRegistry::builtin()).unwrap();
        probes(&roles, &self.dispatcher())
    }

    /// The model of a planned module.
    pub(crate) fn build_module<T: Target>(
        &self,
        module: Module,
    ) -> Result<CompiledModel, ModelError> {
        let (device, compiler) = T::make(&Arc::new(OpRegistry::builtin()), self.threads);
        self.build_module_on::<T>(module, device, compiler.as_ref())
    }

    fn build_module_on<T: Target>(
        &self,
        module: Module,
        device: Box<dyn Device>,
        compiler: &dyn Compiler,
    ) -> Result<CompiledModel, ModelError> {
        let (options, store) = (self.options(), T::store());
        let compiled = compile_module(&module, &options.dispatcher, compiler, store, &mut |_| {})?;
        CompiledModel::build(
            Arc::new(module),
            options,
            compiled,
            store,
            device,
            Arc::new(WEIGHTS),
            &mut |_| {},
        )
    }

    /// The model on a device that is there.
    pub(crate) fn build_on<T: Target>(
        &self,
        device: Box<dyn Device>,
        compiler: &dyn Compiler,
    ) -> CompiledModel {
        self.build_module_on::<T>(self.module(), device, compiler).unwrap()
    }

    pub(crate) fn build<T: Target>(&self) -> CompiledModel {
        self.build_module::<T>(self.module()).unwrap()
    }
}
