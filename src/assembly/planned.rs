//! What is planned and not yet anywhere: a module, its pieces, and artifacts as they are asked for.

use super::dumps::passes::of_passes;
use super::error::AssemblyError;
use super::given::Assembly;
use super::notice::{Notice, Watcher, tell, telling};
use super::options::{Purpose, build_options, compiler_options, cuda_options, engine_options};
use super::prepared::{Prepared, prepare};
use super::settings::{Settings, symbols_of};
use crate::device::OpenDevice;
use crate::models::DecoderFacts;
use crate::session::{InMemoryWeights, Session, StepSymbol};
use piecewise_backend::compiler::{Compiler, NoStore, Store};
use piecewise_backend::weights::WeightSource;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Stitch};
use piecewise_ir::op::Op;
use piecewise_kernels::op::OpRegistry;
use piecewise_passes::RunReport;
use piecewise_passes::manager::check_awaited;
use piecewise_runtime::batch::{RoleMap, probes, row_probe};
use piecewise_runtime::device::check_layers;
use piecewise_runtime::engine::{Engine, EngineOptions};
use piecewise_runtime::measure::ModelTimer;
use piecewise_runtime::memory::KvShape;
use piecewise_runtime::pipeline::{PlanError, Planner};
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::{
    CacheStore, LateCompiler, Lowering, NoCache, PackedStore, compile_jobs,
};
use piecewise_runtime::words::{Ledger, ModelError, SymbolTable};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

mod lowering;
mod room;
mod tuned;

pub use lowering::{LoweredPiece, LoweredUnique};
pub use tuned::Tuned;

/// A planned module with what it is to be compiled and run by. Each piece is lowered at most once
/// at each size, by the first who asks for it.
#[derive(derive_more::Debug)]
#[debug("Planned on {device:?}, {settings:?}, {passes:?}")]
pub struct Planned {
    settings: Settings,
    module: Module,
    symbols: SymbolTable,
    passes: RunReport,
    facts: Option<DecoderFacts>,
    weights: Option<Box<dyn WeightSource>>,
    ops: Arc<OpRegistry>,
    purpose: Purpose,
    threads: usize,
    /// The store that was given.
    kept: Option<Arc<dyn Store>>,
    store: OnceCell<Arc<dyn Store>>,
    device: OnceCell<OpenDevice>,
    compiler: OnceCell<Box<dyn Compiler>>,
    lowering: OnceCell<Lowering>,
    watcher: RefCell<Option<Watcher>>,
    /// Sizes that are lowered once a step wants them.
    late: Vec<u64>,
    /// The key that bounds the memory of the model, and the bytes that it leaves.
    limit: Option<(&'static str, u64)>,
}

/// An op that is not there would never be split at, without a word.
fn check_split_ops(names: &[String], graph: &Graph) -> Result<(), AssemblyError> {
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
            Err(AssemblyError::SplitOp { name: name.clone(), there })
        }
        None => Ok(()),
    }
}

pub(super) fn plan(assembly: Assembly) -> Result<Planned, AssemblyError> {
    let limits = assembly.limits;
    let Prepared {
        settings,
        graph,
        brought,
        facts,
        weights,
        registries,
        mut observers,
        mut watcher,
        device,
        threads,
        store,
        purpose,
    } = prepare(assembly)?;
    let config = &settings.config;
    if let Some(dump) = of_passes(&config.dump, &registries.passes)? {
        // Before those that may stop the passes.
        observers.insert(0, Box::new(dump));
    }
    for warning in settings.warnings() {
        tell(&mut watcher, Notice::Warning(&warning.to_string()));
    }
    settings.check_own_rows(&graph)?;
    let split_ops = config.splitting_ops.as_deref();
    check_split_ops(split_ops.unwrap_or_default(), &graph)?;
    let (module, passes) = match brought {
        Some(module) => {
            // No pass runs over a text with its plan.
            check_awaited(&observers, &[]).map_err(PlanError::from)?;
            (module, RunReport::default())
        }
        None => Planner {
            level: config.level,
            pipeline: registries.pipeline().map_err(PlanError::from)?,
            registry: &registries.passes,
            split_ops,
            defs: registries.ops.defs(),
            limits,
        }
        .plan(graph, observers)?,
    };
    check_layers(&config.capture_exclude, module.graph())?;
    let mut planned = Planned {
        symbols: symbols_of(module.graph())?,
        settings,
        module,
        passes,
        facts,
        weights,
        ops: Arc::new(registries.ops),
        purpose,
        threads,
        kept: store,
        store: OnceCell::new(),
        device: device.map_or_else(OnceCell::new, OnceCell::from),
        compiler: OnceCell::new(),
        lowering: OnceCell::new(),
        watcher: RefCell::new(watcher),
        late: Vec::new(),
        limit: None,
    };
    if planned.is_whole()
        && let Some(budget) = planned.budget()?
    {
        planned.fit(budget)?;
        planned.limit = Some(budget);
    }
    Ok(planned)
}

impl Planned {
    /// The configuration that the plan was made with, and what follows from it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The graph as the passes left it, with as much of its plan as they made.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Classes and bounds of the symbols.
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    /// What the passes did; none run over a text that brings its plan.
    pub fn passes(&self) -> &RunReport {
        &self.passes
    }

    /// What is known of a decoder beside its graph; `None` of a graph or a text.
    pub fn facts(&self) -> Option<&DecoderFacts> {
        self.facts.as_ref()
    }

    /// Whether the passes made a plan to its end.
    pub fn is_whole(&self) -> bool {
        self.module.layout().is_some()
    }

    /// The pieces.
    ///
    /// # Errors
    /// When the pipeline made none.
    pub fn stitch(&self) -> Result<&Stitch, AssemblyError> {
        Ok(self.module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?)
    }

    /// Where what is compiled is kept: the store that was given, or the cache of the
    /// configuration, or nothing; and the kernel packs of the configuration, which are read.
    pub fn store(&self) -> &dyn Store {
        &**self.shared_store()
    }

    fn shared_store(&self) -> &Arc<dyn Store> {
        let config = &self.settings.config.cache;
        let kept = || -> Arc<dyn Store> {
            match CacheStore::open(config) {
                Ok(store) => Arc::new(store),
                Err(NoCache::Disabled) => Arc::new(NoStore),
                Err(reason) => {
                    self.tell(Notice::Warning(&format!("compiling without a cache: {reason}")));
                    Arc::new(NoStore)
                }
            }
        };
        self.store.get_or_init(|| {
            Arc::new(PackedStore::over(self.kept.clone().unwrap_or_else(kept), config))
        })
    }

    /// Says something that is no reason to stop.
    pub(crate) fn warn(&self, text: &str) {
        self.tell(Notice::Warning(text));
    }

    fn tell(&self, notice: Notice<'_>) {
        tell(&mut self.watcher.borrow_mut(), notice);
    }

    /// The device, opened when it is first asked for.
    ///
    /// # Errors
    /// When it, its driver or a library is missing or too old.
    pub fn device(&self) -> Result<&OpenDevice, AssemblyError> {
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let (device, reason) = self.settings.device.resolve();
        if let Some(reason) = reason {
            self.tell(Notice::OnCpu(&reason.to_string()));
        }
        let device = device.open_as(self.threads, cuda_options(&self.settings.config))?;
        Ok(self.device.get_or_init(|| device))
    }

    /// The compiler for the device.
    ///
    /// # Errors
    /// As for [`Self::device`].
    pub fn compiler(&self) -> Result<&dyn Compiler, AssemblyError> {
        let device = self.device()?;
        Ok(&**self.compiler.get_or_init(|| self.compiler_on(device)))
    }

    fn compiler_on(&self, device: &OpenDevice) -> Box<dyn Compiler> {
        device.compiler(&self.ops, compiler_options(&self.settings.config))
    }

    /// Where the memory of the model will go; scratch, code and graphs as far as pieces are lowered.
    ///
    /// # Errors
    /// When there is no plan.
    pub fn ledger(&self) -> Result<Ledger, AssemblyError> {
        let layout = self.module.layout().ok_or(ModelError::Unplanned { part: "layout" })?;
        let scratch = self.lowering.get().map_or(0, Lowering::scratch);
        let options = self.options(self.roles().ok().as_ref())?;
        let ledger = Ledger::new(self.module.graph(), layout, scratch, self.symbols.bounds())
            .with_pinned(
                &self.module,
                &self.symbols,
                &options.read_outputs,
                options.max_logit_rows,
            );
        let Some(lowering) = self.lowering.get() else { return Ok(ledger) };
        let jobs = self.jobs()?;
        let made = jobs.iter().enumerate();
        let made = made.filter_map(|(i, job)| Some((job.unique, lowering.made(i)?.ok()?)));
        let (dispatcher, footprint) = (&self.settings.dispatcher, self.compiler()?.footprint());
        Ok(ledger.with_code(&self.module, &self.symbols, dispatcher, made, footprint))
    }

    /// Compiles what is not compiled yet, loads the weights and captures the graphs.
    fn build(self, options: BuildOptions) -> Result<CompiledModel, AssemblyError> {
        let device = self.device()?.share(&self.ops)?;
        self.artifacts()?;
        self.check_room()?;
        let (compiler, store) = (self.compiler_on(self.device()?), Arc::clone(self.shared_store()));
        let Self { settings, module, symbols, weights, lowering, watcher, late, limit, .. } = self;
        let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
        let jobs = compile_jobs(stitch, &symbols, &settings.dispatcher, &*compiler);
        let lowering = lowering.into_inner().unwrap_or_default();
        let compiled = lowering.finish(jobs, &*compiler, &*store)?;
        let mut watcher = watcher.into_inner();
        let format = settings.config.quantize;
        let mut progress = telling(&mut watcher);
        let weights = weights.unwrap_or_else(|| Box::new(InMemoryWeights::new())).into();
        let (module, tune) = (Arc::new(module), options.tune);
        let planned = Arc::clone(&module);
        let build = CompiledModel::build;
        let mut model = build(planned, options, compiled, &*store, device, weights, &mut progress)?;
        drop(progress);
        let found = model.weight_findings();
        for warning in &found.warnings {
            tell(&mut watcher, Notice::Warning(warning));
        }
        if !found.errors.is_empty() {
            tell(&mut watcher, Notice::Rounded(format, &found));
        }
        model.specialize_late(late, LateCompiler { module, compiler, store }, tune);
        if let Some((from, bytes)) = limit {
            model.limit_memory(from, bytes);
        }
        if settings.config.nvtx {
            model.name_ranges();
        }
        Ok(model)
    }

    fn options(&self, roles: Option<&RoleMap>) -> Result<BuildOptions, AssemblyError> {
        let outputs = self.module.graph().outputs().len();
        Ok(build_options(&self.settings.config, roles, outputs, self.purpose)?)
    }

    /// The same for a device that is there, on which ops are probed.
    fn options_there(&self, roles: Option<&RoleMap>) -> Result<BuildOptions, AssemblyError> {
        let mut options = self.options(roles)?;
        let graph = self.module.graph();
        let is_custom = |node| matches!(graph.node(node).op, Op::Custom(_));
        if roles.is_none() && self.settings.config.probes() && graph.nodes().any(is_custom) {
            options.probes.push(row_probe(graph, &self.symbols, &options.dispatcher));
        }
        Ok(options)
    }

    fn roles(&self) -> Result<RoleMap, AssemblyError> {
        Ok(RoleMap::resolve(self.module.graph(), &self.symbols, &self.ops)?)
    }

    /// The roles, of a graph whose pages are rows of every KV state.
    fn roles_to_serve(&self) -> Result<RoleMap, AssemblyError> {
        KvShape::of(self.module.graph())?;
        self.roles()
    }

    /// An engine over the model, its weights loaded and its graphs captured. Sizes to specialize are
    /// lowered while it runs, once a step wants them, unless a budget of memory has counted them.
    ///
    /// # Errors
    /// When the graph does not return what [`Purpose`] reads back, or keeps other ids for the next step
    /// than it returns; when the device can't be opened, the graph's roles do not fit, a piece does not
    /// compile, a weight is missing, or memory is short.
    pub fn engine(mut self) -> Result<Engine, AssemblyError> {
        self.fit_gpu()?;
        let roles = self.roles_to_serve()?;
        match self.purpose {
            Purpose::Generate => roles.check_generates()?,
            Purpose::Logits => roles.logits_output().map(|_| ())?,
            Purpose::Rows => return Err(AssemblyError::NothingRead),
        }
        let mut options = self.options_there(Some(&roles))?;
        if self.lowering.get().is_none() {
            self.late = std::mem::take(&mut self.settings.dispatcher.rules.specialized);
            options.dispatcher.rules.specialized.clear();
        }
        let config = self.settings.config.clone();
        let model = self.build(options)?;
        let options = engine_options(&config, EngineOptions::of(&model, &roles));
        Ok(Engine::new(model, roles, options)?)
    }

    /// The model, of whose steps every output is read back: whoever steps it brings inputs in their order.
    pub(crate) fn model(self) -> Result<CompiledModel, AssemblyError> {
        let options = match self.roles() {
            // Batches of a decoder show more than rows of padding do.
            Ok(roles) => {
                let mut options = self.options(None)?;
                if self.settings.config.probes() {
                    options.probes = probes(&roles, &options.dispatcher);
                }
                options
            }
            Err(_) => self.options_there(None)?,
        };
        self.build(options)
    }

    /// A session over the model. Every output is read back.
    ///
    /// # Errors
    /// When the inputs of a step would not say how large a symbol is, or as for [`Self::engine`].
    pub fn session(self) -> Result<Session, AssemblyError> {
        let symbols = StepSymbol::all(self.module.graph(), &self.symbols)?;
        let options = self.options_there(None)?;
        let passes = self.passes.clone();
        Ok(Session::new(self.build(options)?, symbols, passes))
    }

    /// A timer over the model, whose sequences have room for so many positions each.
    ///
    /// # Errors
    /// When the pool has no room for them, the graph does not feed back what it samples, or as for
    /// [`Self::engine`].
    pub fn timer(self, positions: &[u64]) -> Result<ModelTimer, AssemblyError> {
        let roles = self.roles_to_serve()?;
        let options = self.options_there(Some(&roles))?;
        Ok(ModelTimer::new(self.build(options)?, roles, positions)?)
    }
}
