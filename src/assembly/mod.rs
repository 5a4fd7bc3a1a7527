//! From a model to something that runs: the one way, whoever asks.
//!
//! An [`Assembly`] takes a graph, a text of the IR, a model folder or a preset; a configuration in
//! which each value knows where it came from; ops, passes and weights of one's own; a device; and
//! a store for what is compiled. What it makes first is [`Planned`]: pieces, memory and, as far as
//! somebody asks for them, artifacts, without a device. From there it is an engine that serves
//! requests, a session that is stepped by hand, or a timer.
//!
//! ```
//! use piecewise::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");
//! let planned = Assembly::folder(folder)?
//!     .max_num_tokens(32)
//!     .max_num_seqs(2)
//!     .max_seq_len(64)
//!     .no_cache()
//!     .plan()?;
//! let stitch = planned.stitch()?;
//! assert_eq!((stitch.piece_count(), stitch.unique_pieces().len()), (8, 4));
//!
//! let mut engine = planned.engine()?;
//! engine.add(Request::new(vec![326, 680], 3))?;
//! let mut events = Vec::new();
//! while engine.step(&mut events)? {}
//! assert_eq!(engine.model().statistics().compile.total_compiled(), planned_pieces(&engine));
//! # fn planned_pieces(engine: &Engine) -> u64 { engine.model().statistics().compile.compiled["piece"] }
//! # Ok(())
//! # }
//! ```

pub mod dumps;
mod error;
mod given;
mod keys;
pub mod launches;
mod notice;
mod options;
pub mod plan_view;
mod planned;
mod prepared;
mod registries;
mod settings;
mod subject;

pub use error::{AssemblyError, BoundOfGraph};
pub use given::Assembly;
pub use notice::{Notice, rounded};
pub use options::Purpose;
pub use planned::{LoweredPiece, LoweredUnique, Planned, Tuned};
pub use registries::Registries;
pub use settings::Settings;
pub(crate) use subject::Subject;

use given::Model;

use crate::device::{DeviceSpec, OpenDevice};
use crate::models::{Checkpoint, DecoderFacts, DecoderModel};
use crate::session::Session;
use piecewise_backend::compiler::Store;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use piecewise_ir::text::{parse_module, render};
use piecewise_ir::verify::verify_graph;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::CaptureSupport;
use piecewise_passes::check::check_plan;
use piecewise_passes::manager::OptionReader;
use piecewise_passes::{Observer, Pass, PipelineError};
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::engine::Engine;
use piecewise_runtime::measure::ModelTimer;
use piecewise_runtime::words::CompileLevel;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Assembly {
    /// A graph of one's own. The bounds of its symbols are its own: a setting that differs from
    /// them is an error of [`Self::plan`].
    pub fn graph(graph: Graph) -> Self {
        Self::of(Model::Graph(graph))
    }

    /// A graph as text, with its plan or without; `name` is what errors call it. What it says of
    /// custom ops is held against their definitions once they are known, by [`Self::plan`].
    ///
    /// # Errors
    /// When it does not parse, or it brings a plan that its graph can't be run by.
    pub fn text(name: impl Into<String>, text: &str) -> Result<Self, AssemblyError> {
        let name = name.into();
        let failed = |what, reason| AssemblyError::Text { name: name.clone(), what, reason };
        let module = parse_module(text).map_err(|e| failed("does not parse", e.to_string()))?;
        if module.layout().is_some() {
            verify_graph(module.graph())
                .map_err(|found| failed("is not valid", render(module.graph(), &found)))?;
            check_plan(&module).map_err(|found| {
                failed("has a plan that can't be used", render(&module, &found))
            })?;
        }
        Ok(Self::of(Model::Text { name, module: Box::new(module) }))
    }

    /// A text in a file.
    ///
    /// # Errors
    /// When it can't be read, or as for [`Self::text`].
    pub fn file(path: impl AsRef<Path>) -> Result<Self, AssemblyError> {
        let name = path.as_ref().display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| AssemblyError::Text {
            name: name.clone(),
            what: "can't be read",
            reason: error.to_string(),
        })?;
        Self::text(name, &text)
    }

    /// A Hugging Face model folder. Its configuration is read now, its weights where there are any
    /// once they are needed.
    ///
    /// # Errors
    /// When `config.json` is missing or of no decoder that is known here; see [`Registries::folder`]
    /// for others.
    pub fn folder(folder: impl Into<PathBuf>) -> Result<Self, AssemblyError> {
        Registries::standard().folder(folder)
    }

    /// A decoder whose graph is built by the settings: a [`DecoderConfig`](crate::models::DecoderConfig)
    /// of a ready family, such as [`Preset::config`](crate::models::Preset::config), or one's own. To run
    /// it, give it weights.
    pub fn model(model: impl DecoderModel + 'static) -> Self {
        let facts = model.facts();
        Self::of(Model::Decoder { model: Arc::new(model), facts })
    }

    /// Models, ops and passes of one's own beside those of the framework, in place of what was said of
    /// ops, passes and their order before.
    pub fn registries(mut self, registries: Registries) -> Self {
        self.registries = registries;
        self
    }

    /// Configuration from files, flags or both: above that of earlier calls, and beneath what is set
    /// by the methods here, before or after.
    pub fn configure(mut self, layers: ConfigLayers) -> Self {
        self.layers = self.layers.map(|set| set.beneath_what_was_set(layers));
        self
    }

    /// Sets a key of the configuration, as in a file: `set("checks.poison", true)`. A wrong key or
    /// value is the error of [`Self::plan`].
    pub fn set(mut self, key: &str, value: impl Serialize) -> Self {
        self.layers = self.layers.and_then(|layers| layers.set(key, value));
        self
    }

    /// Sets a key as a flag of a command line does, which is named as where the value comes from.
    pub fn flag(mut self, key: &str, value: impl Into<toml::Value>, flag: &str) -> Self {
        self.layers = self.layers.and_then(|layers| layers.flag(key, value, flag));
        self
    }

    /// Sets a key that nobody has set to what follows `from` something else.
    pub(crate) fn derive(mut self, key: &str, value: impl Into<toml::Value>, from: &str) -> Self {
        self.layers = self.layers.and_then(|layers| layers.derived(key, value, from));
        self
    }

    /// Sets a key to what leaves no choice about it, whoever set it.
    pub(crate) fn impose(mut self, key: &str, value: impl Into<toml::Value>, from: &str) -> Self {
        self.layers = self.layers.and_then(|layers| layers.imposed(key, value, from));
        self
    }

    /// Says that the graph was built by the settings: its bounds are what became of them.
    pub(crate) fn built_by_settings(mut self) -> Self {
        self.built_by_settings = true;
        self
    }

    /// What was configured so far.
    pub(crate) fn layers(&self) -> Result<ConfigLayers, AssemblyError> {
        Ok(self.layers.clone()?)
    }

    /// The graph as it was given; none of a decoder, which is built from its configuration.
    pub(crate) fn given_graph(&self) -> Option<&Graph> {
        match &self.model {
            Model::Graph(graph) => Some(graph),
            Model::Text { module, .. } => Some(module.graph()),
            Model::Decoder { .. } => None,
        }
    }

    /// Steps as one graph each, unless somebody chose a mode, where every custom op of the given graph
    /// can be captured in any step; else in pieces.
    pub(crate) fn whole_where_possible(self) -> Result<Self, AssemblyError> {
        let Some(graph) = self.given_graph() else { return Ok(self) };
        let Settings { config, device, .. } = self.settings()?;
        let on_cpu = |name| self.registries.ops.cpu(name).map(|op| op.capture_support());
        let on_cuda = |name| self.registries.ops.cuda(name).map(|op| op.capture_support());
        let support = |name| match device {
            DeviceSpec::Cpu => on_cpu(name),
            DeviceSpec::Cuda(_) | DeviceSpec::Arch(_) => on_cuda(name),
            DeviceSpec::Auto => on_cpu(name).min(on_cuda(name)),
        };
        let is_captured = |node| match &graph.node(node).op {
            Op::Custom(call) => support(&call.name) == Some(CaptureSupport::Always),
            _ => true,
        };
        let is_whole = config.level == CompileLevel::Piecewise
            && config.capture_exclude.is_empty()
            && graph.nodes().all(is_captured);
        match is_whole {
            true => Ok(self.derive("graph_mode", "full", "ops that can all be captured")),
            false => Ok(self),
        }
    }

    /// Where it runs: a device that is open, which other models may share.
    pub fn on(mut self, device: &OpenDevice) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Threads of the CPU, where no open device is given; all, unless said otherwise.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Custom ops and their implementations; without it, the ops of the framework.
    pub fn ops(mut self, ops: OpRegistry) -> Self {
        self.registries = self.registries.ops(ops);
        self
    }

    /// Adds a pass that [`Self::pipeline`] may name, with the names of the options that it takes; what
    /// else it needs, `make` may bring.
    pub fn pass(
        mut self,
        name: impl Into<String>,
        options: &[&str],
        make: impl Fn(&mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.registries = self.registries.pass(name, options, make);
        self
    }

    /// The same, and has it run right after the first pass that is called `after`. Where there is none,
    /// that is the error of [`Self::plan`].
    pub fn pass_after(
        mut self,
        after: &str,
        name: &str,
        options: &[&str],
        make: impl Fn(&mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.registries = self.registries.pass_after(after, name, options, make);
        self
    }

    /// The passes in order, with options in braces, instead of
    /// [`DEFAULT_PIPELINE`](piecewise_passes::pipeline::DEFAULT_PIPELINE). At the level
    /// `eager` only those from `split` on run.
    pub fn pipeline(mut self, text: impl AsRef<str>) -> Self {
        self.registries = self.registries.with_pipeline(text.as_ref());
        self
    }

    /// Where the weights come from; without it, from the model folder.
    pub fn weights(mut self, weights: impl WeightSource + 'static) -> Self {
        self.weights = Some(Box::new(weights));
        self
    }

    /// Takes the weights of a checkpoint, which [`Self::check_weights`] can hold against the graph.
    pub fn checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.checkpoint = Some(Ok(checkpoint));
        self
    }

    /// Holds the weights of a model folder or a checkpoint against the graph before anything is compiled;
    /// [`Self::engine`], [`Self::session`] and [`Self::timer`] do so unasked.
    pub fn check_weights(mut self) -> Self {
        self.checks_weights = true;
        self
    }

    /// Where what is compiled is kept, instead of the cache of the configuration.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Calls `observer` after each pass.
    pub fn observe(mut self, observer: Box<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Runs the first `passes` of the pipeline, and of those after them what a plan can't do without:
    /// with fewer and fewer of them, a pass that breaks something is found.
    /// `piecewise bisect` does that.
    pub fn only_first(mut self, passes: usize) -> Self {
        self.limits.passes = Some(passes);
        self
    }

    /// Does the first `rewrites` of all passes together; [`RunReport::rewrites`] says which was the last.
    ///
    /// [`RunReport::rewrites`]: piecewise_passes::RunReport::rewrites
    pub fn only_rewrites(mut self, rewrites: u64) -> Self {
        self.limits.rewrites = Some(rewrites);
        self
    }

    /// Calls `watcher` with progress and warnings.
    pub fn watch(mut self, watcher: impl FnMut(Notice<'_>) + Send + 'static) -> Self {
        self.watcher = Some(Box::new(watcher));
        self
    }

    /// What is read back: of an engine sampled ids, or logits too; of a session its outputs, or
    /// nothing.
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// The sequences that there will be, where that is known: a decoder's KV pool has room for no more
    /// at their longest. What is compiled and captured follows from the settings alone, so that runs
    /// of other numbers find it in the cache.
    pub fn sequences(mut self, sequences: u64) -> Self {
        self.sequences = Some(sequences);
        self
    }

    /// Rows of a decoder's KV pool; without it, room for every sequence at its longest, or what
    /// the memory budget leaves.
    pub fn kv_rows(mut self, rows: u64) -> Self {
        self.kv_rows = Some(rows);
        self
    }

    /// Rows that may stand for tokens at once, of a decoder that reads images; without it, as many as
    /// the longest sequence has tokens.
    pub fn embedding_rows(mut self, rows: u64) -> Self {
        self.embedding_rows = Some(rows);
        self
    }

    /// What is known of a decoder before its graph; `None` of a graph or a text.
    pub fn facts(&self) -> Option<&DecoderFacts> {
        match &self.model {
            Model::Decoder { facts, .. } => Some(facts),
            Model::Graph(_) | Model::Text { .. } => None,
        }
    }

    /// The settings in force, before anything is planned.
    ///
    /// # Errors
    /// When a value is wrong, or two do not go together.
    pub fn settings(&self) -> Result<Settings, AssemblyError> {
        let mut layers = self.layers.clone()?;
        if let Some(device) = &self.device {
            let name = device.spec().to_string();
            layers = layers.imposed("device", name, "the open device that was given")?;
        }
        let of_graph = |layers, graph| {
            Settings::of_graph(layers, graph, &self.registries.ops, self.built_by_settings)
        };
        match &self.model {
            Model::Graph(graph) => of_graph(layers, graph),
            Model::Text { module, .. } => of_graph(layers, module.graph()),
            Model::Decoder { facts, .. } => Settings::of_model(layers, facts),
        }
    }

    /// Builds the graph, runs the passes and, where there is a memory budget, lowers the pieces to
    /// see what is left for the KV cache. Nothing is loaded.
    ///
    /// # Errors
    /// When a setting is wrong, a pass fails or breaks a rule, a piece does not compile where a
    /// budget has it compiled, or the budget is too small.
    pub fn plan(self) -> Result<Planned, AssemblyError> {
        let planned = planned::plan(self)?;
        dumps::write(&planned)?;
        Ok(planned)
    }

    /// A session, which is stepped by hand: inputs by name, outputs by position.
    ///
    /// # Errors
    /// As for [`Self::plan`] and [`Planned::session`].
    pub fn session(self) -> Result<Session, AssemblyError> {
        self.check_weights().plan()?.session()
    }

    /// An engine, which serves requests by continuous batching.
    ///
    /// # Errors
    /// As for [`Self::plan`] and [`Planned::engine`].
    pub fn engine(self) -> Result<Engine, AssemblyError> {
        self.check_weights().plan()?.engine()
    }

    /// A timer, whose sequences have room for so many positions each.
    ///
    /// # Errors
    /// As for [`Self::plan`] and [`Planned::timer`].
    pub fn timer(self, positions: &[u64]) -> Result<ModelTimer, AssemblyError> {
        self.check_weights().plan()?.timer(positions)
    }
}

impl Registries {
    /// A Hugging Face model folder of a family or of a model of one's own, by the `model_type` of its
    /// configuration, which is read now; its weights where there are any once they are needed.
    ///
    /// # Errors
    /// When `config.json` is missing, of no model that is registered, or not as its reader wants it.
    pub fn folder(&self, folder: impl Into<PathBuf>) -> Result<Assembly, AssemblyError> {
        let folder = folder.into();
        match self.models.read(&folder) {
            Ok((model, facts)) => {
                let checkpoint = Some(Checkpoint::open(&folder));
                let assembly = Assembly::of(Model::Decoder { model, facts });
                Ok(Assembly { checkpoint, ..assembly.registries(self.clone()) })
            }
            Err(source) => Err(AssemblyError::Folder { folder, source: Box::new(source) }),
        }
    }
}

#[cfg(test)]
mod tests;
