//! From the flags to a planned module and an engine.

use super::device::{compiler_for, engine_on};
use super::dumps::DumpArgs;
use super::lowering::lower;
use super::model_args::{BoundArgs, ModelArgs};
use super::settings::{Settings, Workload};
use anyhow::{Context, bail};
use piecewise::models::{
    Checkpoint, DecoderConfig, DecoderLimits, check_weights, decoder, unused_tensors,
};
use piecewise_backend::artifact::Artifact;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_kernels::op::OpRegistry;
use piecewise_passes::{Observer, RunReport};
use piecewise_runtime::batch::RoleMap;
use piecewise_runtime::config::Purpose;
use piecewise_runtime::engine::Engine;
use piecewise_runtime::kv::KvShape;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::symbols::SymbolTable;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A model folder with the settings for it, before anything is compiled.
pub(crate) struct Folder {
    pub config: DecoderConfig,
    pub settings: Settings,
    workload: Workload,
}

impl Folder {
    /// Reads the configurations, the model's and ours.
    pub(crate) fn open(args: &ModelArgs, workload: Workload) -> anyhow::Result<Self> {
        Self::of(read_config(&args.model)?, &args.bounds, workload)
    }

    /// A model of which only the configuration is known.
    pub(crate) fn of(
        config: DecoderConfig,
        bounds: &BoundArgs,
        workload: Workload,
    ) -> anyhow::Result<Self> {
        let settings = Settings::of_model(bounds, &config, workload)?;
        Ok(Self { config, settings, workload })
    }

    /// Says on standard error what deserves a second look.
    pub(crate) fn warn(&self) {
        for key in &self.config.ignored_keys {
            super::warn(&format!("config.json: `{key}` is not known here and is ignored"));
        }
        self.settings.warn();
    }

    /// The graph; `dtype_of` knows what the checkpoint stores a tensor as.
    pub(crate) fn graph(
        &self,
        dtype_of: impl Fn(&str) -> Option<DType> + 'static,
    ) -> anyhow::Result<Graph> {
        let config = &self.settings.config;
        let limits = DecoderLimits {
            activations: config.dtype.unwrap_or(DType::F32),
            max_tokens: config.max_num_tokens,
            max_rows: config.max_num_rows(),
            max_sequences: config.max_num_seqs(),
            max_length: config.max_seq_len,
            kv_rows: self.settings.most_kv_rows(self.workload.sequences),
        };
        Ok(decoder(&self.config, &limits, dtype_of)?)
    }

    /// The module, with a KV pool of the size that the memory budget allows.
    pub(crate) fn plan(
        &self,
        dumps: &DumpArgs,
        mut graph: Graph,
    ) -> anyhow::Result<(Module, RunReport)> {
        if let (Some(budget), false) = (self.settings.config.memory_budget, dumps.stops()) {
            let rows = self.kv_rows_within(budget, graph.clone())?;
            self.settings.config.set_bounds(&mut graph, rows);
        }
        plan_dumped(&self.settings, graph, dumps)
    }

    /// Rows of the KV pool that `budget` bytes leave. What else is needed does not depend on the
    /// pool, so a plan for a pool of any size tells.
    fn kv_rows_within(&self, budget: u64, graph: Graph) -> anyhow::Result<u64> {
        let (module, _) = plan_graph(&self.settings, graph, Vec::new())?;
        let (Some(stitch), Some(layout)) = (module.stitch(), module.layout()) else {
            bail!("the pipeline made no plan");
        };
        let compiler = compiler_for(self.settings.device)?;
        let symbols = SymbolTable::new(module.graph().symbols())?;
        let store = self.settings.store();
        let compiled = lower(&self.settings, stitch, &symbols, &*compiler, store)?;
        let scratch = compiled.artifacts.iter().flatten().map(Artifact::scratch).max();
        let shape = KvShape::of(module.graph())?;
        let fixed = shape.fixed_bytes(module.graph(), layout, scratch.unwrap_or(0));
        let most = self.settings.most_kv_rows(self.workload.sequences);
        Ok(shape.rows_within(budget, fixed, self.settings.config.max_seq_len, most)?)
    }
}

/// Runs the passes over a graph, and dumps what they did and made.
pub(crate) fn plan_dumped(
    settings: &Settings,
    graph: Graph,
    dumps: &DumpArgs,
) -> anyhow::Result<(Module, RunReport)> {
    let (module, report) = plan_graph(settings, graph, dumps.observers(&settings.config.dump)?)?;
    dumps.write_planned(settings, &module)?;
    Ok((module, report))
}

/// Runs the passes over a graph.
pub(crate) fn plan_graph(
    settings: &Settings,
    graph: Graph,
    observers: Vec<Box<dyn Observer>>,
) -> anyhow::Result<(Module, RunReport)> {
    let config = &settings.config;
    check_split_ops(config.splitting_ops.as_deref().unwrap_or_default(), &graph)?;
    Ok(plan(graph, config.level, config.splitting_ops.as_deref(), observers)?)
}

/// An op that is not there would never be split at, without a word.
fn check_split_ops(names: &[String], graph: &Graph) -> anyhow::Result<()> {
    let ops: BTreeSet<&str> = graph
        .nodes()
        .filter_map(|node| match &graph.node(node).op {
            Op::Custom(call) => Some(call.name.as_str()),
            _ => None,
        })
        .collect();
    match names.iter().find(|name| !ops.contains(name.as_str())) {
        Some(name) => {
            let there = Vec::from_iter(ops).join(", ");
            bail!("splitting_ops names {name:?}, but the custom ops of the graph are {there}")
        }
        None => Ok(()),
    }
}

/// An engine over a planned module, with its weights loaded and its graphs captured.
pub(crate) fn engine(
    settings: &Settings,
    purpose: Purpose,
    module: Module,
    weights: &dyn WeightSource,
) -> anyhow::Result<Box<dyn Engine>> {
    let symbols = SymbolTable::new(module.graph().symbols())?;
    let roles = RoleMap::resolve(module.graph(), &symbols, &OpRegistry::builtin())?;
    let options = settings.config.build_options(&roles, purpose)?;
    engine_on(settings, module, roles, options, weights)
}

/// Reads the configuration of a model folder.
pub(crate) fn read_config(folder: &Path) -> anyhow::Result<DecoderConfig> {
    DecoderConfig::load(folder)
        .with_context(|| format!("can't use the model in {}", folder.display()))
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
            super::warn(&format!("checkpoint tensor \"{name}\" is not used"));
        }
    }
    Ok(())
}

/// A decoder, ready to serve.
pub(crate) fn load_decoder(
    args: &ModelArgs,
    dumps: &DumpArgs,
    folder: &Folder,
) -> anyhow::Result<Box<dyn Engine>> {
    folder.warn();
    let checkpoint = Checkpoint::open(&args.model)?;
    let dtypes = stored_dtypes(&checkpoint);
    let graph = folder.graph(move |name| dtypes.get(name).copied())?;
    check_checkpoint(&graph, &checkpoint)?;
    let (module, _) = folder.plan(dumps, graph)?;
    if dumps.stops() {
        bail!("the passes were stopped early; there is nothing to run");
    }
    engine(&folder.settings, folder.workload.purpose, module, &checkpoint)
}
