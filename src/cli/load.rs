//! From the flags to a planned module and an engine.

use super::device::engine_on;
use super::dumps::DumpArgs;
use super::model_args::{CheckArg, CompileArgs, ModelArgs};
use anyhow::{Context, bail};
use piecewise::models::{
    Checkpoint, DecoderConfig, DecoderLimits, check_weights, decoder, unused_tensors,
};
use piecewise_backend::weights::WeightSource;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_passes::RunReport;
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::engine::DynEngine;
use piecewise_runtime::mode::GraphMode;
use piecewise_runtime::mode::Level;
use piecewise_runtime::model::{BuildOptions, CaptureWhen, Checks, OnCaptureFailure};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::sizes::SizeList;
use std::collections::BTreeMap;

/// A model folder as the flags ask for it, before anything is compiled.
pub(crate) struct Folder {
    pub config: DecoderConfig,
    pub limits: DecoderLimits,
    pub dispatcher: Dispatcher,
}

/// The index of the logits among a decoder's outputs.
pub(crate) const LOGITS: usize = 0;
/// The index of the sampled ids among a decoder's outputs.
pub(crate) const SAMPLED: usize = 1;

impl Folder {
    /// Reads the configuration and derives bounds and lists.
    pub(crate) fn open(args: &ModelArgs) -> anyhow::Result<Self> {
        let config = DecoderConfig::load(&args.model)
            .with_context(|| format!("can't use the model in {}", args.model.display()))?;
        for key in &config.ignored_keys {
            tracing::warn!("config.json: `{key}` is not known here and is ignored");
        }
        let longest = config.max_position_embeddings as u64;
        let max_length = args.max_seq_len.unwrap_or(longest);
        if max_length == 0 || max_length > longest {
            bail!("--max-seq-len {max_length} must be from 1 to the model's {longest}");
        }
        let per_sequence = max_length.next_multiple_of(PAGE_ROWS);
        let limits = DecoderLimits {
            activations: args.dtype.map_or(config.dtype.unwrap_or(DType::F32), Into::into),
            max_tokens: args.max_num_tokens,
            max_rows: args.max_num_seqs,
            max_sequences: args.max_num_seqs,
            max_length,
            kv_rows: per_sequence.saturating_mul(args.max_num_seqs),
        };
        let dispatcher = dispatcher(&args.compile, args.max_num_tokens, args.max_num_seqs)?;
        Ok(Self { config, limits, dispatcher })
    }

    /// The graph; `dtype_of` knows what the checkpoint stores a tensor as.
    pub(crate) fn graph(
        &self,
        dtype_of: impl Fn(&str) -> Option<DType> + 'static,
    ) -> anyhow::Result<Graph> {
        Ok(decoder(&self.config, &self.limits, dtype_of)?)
    }
}

fn size_list(
    list: &'static str,
    given: Option<&Vec<u64>>,
    bound_name: &'static str,
    bound: u64,
) -> anyhow::Result<SizeList> {
    Ok(match given.map(Vec::as_slice) {
        None => SizeList::default_pattern(bound),
        Some(&[max]) => {
            SizeList::new(list, vec![max], bound_name, bound)?;
            SizeList::default_pattern(max)
        }
        Some(sizes) => SizeList::new(list, sizes.to_vec(), bound_name, bound)?,
    })
}

/// The lists and bounds of dispatch for at most `tokens` tokens and `seqs` sequences in a step.
pub(crate) fn dispatcher(args: &CompileArgs, tokens: u64, seqs: u64) -> anyhow::Result<Dispatcher> {
    let mode = match Level::from(args.level) {
        Level::Piecewise => args.graph_mode,
        _ => GraphMode::None,
    };
    if tokens == 0 || seqs == 0 {
        bail!("max_num_tokens and max_num_seqs must be at least 1");
    }
    let token_list = args.capture_num_tokens.as_ref();
    let batch_list = args.decode_batch_sizes.as_ref();
    Ok(Dispatcher {
        mode,
        tokens: size_list("capture_num_tokens", token_list, "max_num_tokens", tokens)?,
        batches: size_list("decode_batch_sizes", batch_list, "max_num_seqs", seqs)?,
        query_lengths: vec![1],
        max_tokens: tokens,
        max_rows: seqs,
        max_sequences: seqs,
        padding: !args.no_padding,
    })
}

/// Runs the passes over a graph.
pub(crate) fn plan_graph(
    args: &CompileArgs,
    dumps: &DumpArgs,
    graph: Graph,
) -> anyhow::Result<(Module, RunReport)> {
    let split_ops: Option<Vec<String>> = args
        .splitting_ops
        .as_ref()
        .map(|list| list.split(',').filter(|op| !op.is_empty()).map(str::to_owned).collect());
    Ok(plan(graph, args.level.into(), split_ops.as_deref(), dumps.observers()?)?)
}

/// An engine over a planned module, with its weights loaded and its graphs captured.
pub(crate) fn engine(
    args: &CompileArgs,
    module: Module,
    dispatcher: Dispatcher,
    weights: &dyn WeightSource,
    read_outputs: Vec<usize>,
    max_logit_rows: u64,
) -> anyhow::Result<Box<dyn DynEngine>> {
    let checks = Checks {
        poison: args.check.contains(&CheckArg::Poison),
        addresses: args.check.contains(&CheckArg::Addresses),
        compare: args.check.contains(&CheckArg::Compare),
    };
    let options = BuildOptions {
        dispatcher,
        max_logit_rows,
        read_outputs,
        capture: CaptureWhen::Startup,
        on_capture_failure: OnCaptureFailure::Error,
        strict: args.strict,
        checks,
    };
    engine_on(args.device, module, options, weights)
}

/// The types that a checkpoint stores its tensors in, by name.
pub(crate) fn stored_dtypes(checkpoint: &Checkpoint) -> BTreeMap<String, DType> {
    checkpoint
        .names()
        .filter_map(|name| Some((name.to_owned(), checkpoint.dtype_of(name)?)))
        .collect()
}

/// Holds the weights of a graph against a checkpoint: all there, of the right shape, and none
/// left over that would change the result.
pub(crate) fn check_checkpoint(graph: &Graph, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    check_weights(graph, checkpoint)?;
    for name in unused_tensors(graph, checkpoint) {
        let inert = name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
        if name.ends_with(".bias") {
            bail!(
                "checkpoint tensor \"{name}\" is a bias that the model of config.json does not \
                 have: the configuration belongs to other weights"
            );
        }
        if !inert {
            tracing::warn!("checkpoint tensor \"{name}\" is not used");
        }
    }
    Ok(())
}

/// A decoder, ready to serve.
pub(crate) fn load_decoder(
    args: &ModelArgs,
    dumps: &DumpArgs,
    read_outputs: Vec<usize>,
    max_logit_rows: u64,
) -> anyhow::Result<(Folder, Box<dyn DynEngine>)> {
    let folder = Folder::open(args)?;
    let checkpoint = Checkpoint::open(&args.model)?;
    let dtypes = stored_dtypes(&checkpoint);
    let graph = folder.graph(move |name| dtypes.get(name).copied())?;
    check_checkpoint(&graph, &checkpoint)?;
    let (module, _) = plan_graph(&args.compile, dumps, graph)?;
    if dumps.stops() {
        bail!("the passes were stopped early; there is nothing to run");
    }
    let dispatcher = folder.dispatcher.clone();
    let engine =
        engine(&args.compile, module, dispatcher, &checkpoint, read_outputs, max_logit_rows)?;
    Ok((folder, engine))
}
