//! Our side of a contest.

use crate::contest::Side;
use crate::model::Model;
use anyhow::{Context, bail};
use piecewise::assembly::{Assembly, Notice, Planned};
use piecewise::models::{DecoderConfig, DecoderBounds, decoder};
use piecewise_backend::compiler::NoStore;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::Op;
use piecewise_runtime::engine::{Engine, Request, RequestEvent};
use piecewise_runtime::words::RequestId;
use piecewise_runtime::words::GraphMode;
use std::sync::Arc;

/// The most tokens of a step, and so of a prompt's chunk.
const MAX_TOKENS: u64 = 128;
/// The longest sequence.
pub const MAX_LENGTH: u64 = 512;

/// The graph of one sequence at a time.
pub fn graph(config: &DecoderConfig, activations: DType) -> anyhow::Result<Graph> {
    let bounds = DecoderBounds {
        activations,
        max_tokens: MAX_TOKENS,
        max_rows: 1,
        max_sequences: 1,
        max_length: MAX_LENGTH,
        kv_rows: MAX_LENGTH,
        state_slots: 0,
        embedding_rows: 0,
        sampling_controls: false,
    };
    Ok(decoder(config, &bounds, |_| None)?)
}

/// A graph through the passes; what it is compiled to is not kept.
pub fn planned(
    graph: Graph,
    weights: impl WeightSource + 'static,
    threads: usize,
    watcher: impl FnMut(Notice<'_>) + Send + 'static,
) -> anyhow::Result<Planned> {
    let assembly = Assembly::graph(graph)
        .weights(weights)
        .store(Arc::new(NoStore))
        .threads(threads)
        .graph_mode(GraphMode::FullAndPiecewise)
        .capture_sizes([1, MAX_TOKENS])
        .set("decode_batch_sizes", [1])
        .set("prefix_cache", false)
        .set("probe_capture", false)
        .set("strict", true)
        .watch(watcher);
    Ok(assembly.plan()?)
}

/// Decodes with the runtime, in full graphs.
pub struct Piecewise {
    name: String,
    pub engine: Engine,
    bytes_per_step: u64,
    bytes_per_position: u64,
    request: Option<RequestId>,
    events: Vec<RequestEvent>,
}

impl Piecewise {
    pub fn new(model: &Model, activations: DType, threads: usize) -> anyhow::Result<Self> {
        let graph = graph(&model.config, activations)?;
        let planned = planned(graph, model.weights.clone(), threads, |_| {})?;
        let (bytes_per_step, bytes_per_position) = traffic(planned.module().graph());
        Ok(Self {
            name: format!("piecewise {activations}"),
            engine: planned.engine()?,
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
