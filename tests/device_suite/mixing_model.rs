//! Models around ops that mix rows: an embedding, what a test puts behind it, and a head tied to it.

use crate::any_graph::options;
use piecewise::models::{StepBounds, StepInputs};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::module::Module;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::BuildOptions;
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{CompileLevel, GraphMode};
use std::sync::Arc;

/// Elements of a row.
pub(crate) const WIDTH: u64 = 16;
/// Tokens of a step at most, each of which may be sampled from.
pub(crate) const MOST: u64 = 16;

/// The plan of a model of so many sequences at most; `behind` is what the embedded rows go through.
pub(crate) fn mixing_model(
    name: &str,
    max_sequences: u64,
    behind: impl for<'b> FnOnce(&'b Builder, Tensor<'b>, &StepInputs<'b>) -> Tensor<'b>,
) -> Arc<Module> {
    let b = Builder::new(name).weight_dtype(F32);
    let (max_tokens, max_rows) = (MOST, MOST);
    let (max_length, kv_rows, state_slots) = (64, 0, 0);
    let bounds =
        StepBounds { max_tokens, max_rows, max_sequences, max_length, kv_rows, state_slots };
    let inputs = StepInputs::declare(&b, &bounds);
    let embedding = b.weight("embedding", [61, WIDTH]);
    let x = behind(&b, embedding.gather(inputs.ids).silu(), &inputs);
    let logits = x.gather(inputs.logit_rows).matmul_transposed(embedding, F32);
    let graph = b.finish([logits, inputs.sample(logits)]).unwrap();
    Arc::new(plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0)
}

/// How it is built: captured at these sizes in tokens, and in uniform batches of these numbers of sequences.
pub(crate) fn mixing_options(
    module: &Module,
    mode: GraphMode,
    sizes: &[u64],
    batches: &[u64],
) -> BuildOptions {
    let mut options = BuildOptions { max_logit_rows: MOST, ..options(module, mode, sizes, MOST) };
    let dispatcher = &mut options.dispatcher;
    let most = batches.last().copied().unwrap_or(1);
    dispatcher.batches = SizeList::new("batches", batches.to_vec(), "bound", most).unwrap();
    (dispatcher.max_rows, dispatcher.max_sequences) = (MOST, most);
    options
}
