//! Our side of a contest.

use crate::contest::Side;
use crate::model::Model;
use anyhow::{Context, bail};
use piecewise::models::{DecoderConfig, DecoderLimits, decoder};
use piecewise_backend::compiler::NoStore;
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::weights::WeightSource;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::artifact_store::compile_module;
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::dispatch::{Dispatcher, SizeRules};
use piecewise_runtime::engine::{BatchingEngine, Engine, EngineOptions, RequestEvent, Request, RequestId};
use piecewise_runtime::mode::{GraphMode, Level};
use piecewise_runtime::model::{
    BuildOptions, CaptureWhen, Checks, CompiledModel, OnCaptureFailure, Progress,
};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::sizes::SizeList;
use std::sync::Arc;

/// The most tokens of a step, and so of a prompt's chunk.
const MAX_TOKENS: u64 = 128;
/// The longest sequence.
pub const MAX_LENGTH: u64 = 512;
/// The position of the sampled ids among a decoder's outputs.
const SAMPLED: usize = 1;

/// The graph of one sequence at a time.
pub fn graph(config: &DecoderConfig, activations: DType) -> anyhow::Result<Graph> {
    let limits = DecoderLimits {
        activations,
        max_tokens: MAX_TOKENS,
        max_rows: 1,
        max_sequences: 1,
        max_length: MAX_LENGTH,
        kv_rows: MAX_LENGTH,
        embedding_rows: 0,
        sampling_controls: false,
    };
    Ok(decoder(config, &limits, |_| None)?)
}

/// A planned module.
pub fn planned(graph: Graph) -> anyhow::Result<Module> {
    Ok(plan(graph, Level::Piecewise, None, Vec::new())?.0)
}

/// Compiles, loads and captures.
pub fn engine(
    module: Module,
    weights: Arc<dyn WeightSource>,
    threads: usize,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> anyhow::Result<BatchingEngine<CpuDevice>> {
    let sizes = |name: &'static str, max| SizeList::new(name, vec![1, max], "the bound", max);
    let dispatcher = Dispatcher {
        mode: GraphMode::FullAndPiecewise,
        tokens: sizes("capture_num_tokens", MAX_TOKENS)?,
        batches: SizeList::new("decode_batch_sizes", vec![1], "the bound", 1)?,
        query_lengths: vec![1],
        max_tokens: MAX_TOKENS,
        max_rows: 1,
        max_sequences: 1,
        padding: true,
        own: Vec::new(),
        rules: SizeRules::default(),
    };
    let options = BuildOptions {
        dispatcher,
        max_logit_rows: 1,
        read_outputs: vec![SAMPLED],
        capture: CaptureWhen::Startup,
        on_capture_failure: OnCaptureFailure::Error,
        capture_attempts: 3,
        capture_exclude: Vec::new(),
        probes: Vec::new(),
        tune: TuneMode::default(),
        tune_budget: std::time::Duration::ZERO,
        tuning_steps: Vec::new(),
        strict: true,
        checks: Checks::default(),
        measure_padding: false,
    };
    let registry = Arc::new(OpRegistry::builtin());
    let compiler = CpuCompiler::new(Arc::clone(&registry), threads);
    let device = CpuDevice::new(registry, threads)?;
    let compiled =
        compile_module(&module, &options.dispatcher, &compiler, &NoStore, progress)?;
    let model = CompiledModel::build(
        Arc::new(module),
        options,
        compiled,
        &NoStore,
        device,
        weights,
        progress,
    )?;
    let ops = OpRegistry::builtin();
    let roles = RoleMap::resolve(model.module().graph(), model.symbols(), &ops)?;
    let options = EngineOptions::of(&model, &roles);
    Ok(BatchingEngine::new(model, roles, options)?)
}

/// Decodes with the runtime, in full graphs.
pub struct Piecewise {
    name: String,
    pub engine: BatchingEngine<CpuDevice>,
    bytes_per_step: u64,
    bytes_per_position: u64,
    request: Option<RequestId>,
    events: Vec<RequestEvent>,
}

impl Piecewise {
    pub fn new(model: &Model, activations: DType, threads: usize) -> anyhow::Result<Self> {
        let module = planned(graph(&model.config, activations)?)?;
        let (bytes_per_step, bytes_per_position) = traffic(module.graph());
        Ok(Self {
            name: format!("piecewise {activations}"),
            engine: engine(module, Arc::new(model.weights.clone()), threads, &mut |_| {})?,
            bytes_per_step,
            bytes_per_position,
            request: None,
            events: Vec::new(),
        })
    }

    fn next(&mut self) -> anyhow::Result<u32> {
        loop {
            self.engine.step(&mut self.events)?;
            if let Some(RequestEvent::Token { id, .. }) = self.events.drain(..).next() {
                return Ok(id);
            }
            if !self.engine.has_work() {
                bail!("the sequence ended early");
            }
        }
    }
}

impl Side for Piecewise {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&mut self, prompt: &[u32], steps: usize) -> anyhow::Result<u32> {
        if let Some(last) = self.request.take() {
            // It is gone if it ran to its end.
            let _ = self.engine.remove(last);
            while self.engine.has_work() {
                self.engine.step(&mut self.events)?;
            }
            self.events.clear();
        }
        // One step is submitted ahead of the one that is read.
        let request = self.engine.add(Request::new(prompt, steps as u64 + 2))?;
        self.request = Some(request);
        self.next().context("the prompt")
    }

    fn step(&mut self) -> anyhow::Result<u32> {
        self.next()
    }

    fn bytes_read(&self, context: u64) -> u64 {
        self.bytes_per_step + self.bytes_per_position * context
    }
}

/// Bytes that a step of one token reads: of the weights of its products, each once, and of the
/// states for each position of the context.
fn traffic(graph: &Graph) -> (u64, u64) {
    let mut weights = 0;
    for node in graph.nodes() {
        let node = graph.node(node);
        if let Op::MatMul { .. } = node.op {
            let read =
                node.operands.iter().filter(|&&v| matches!(graph.def(v), ValueDef::Weight(_)));
            weights += read.map(|&v| graph.ty(v).bytes(&[])).sum::<u64>();
        }
    }
    let paged =
        graph.states().iter().map(|state| graph.ty(state.value)).filter(|ty| ty.rank() == 3);
    (weights, paged.map(|ty| ty.row().bytes(&[])).sum())
}
