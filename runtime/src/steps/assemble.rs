//! Assembling a model: close the arena over the artifacts, load, bind.

use super::clock::StepClock;
use super::compiled::CompiledModel;
use super::graphs::GraphSet;
use super::options::BuildOptions;
use super::origin::Origin;
use super::pace::Pace;
use super::staging::GivenInputs;
use crate::device::{BindSite, Choices, check_artifacts};
use crate::dispatch::MeasuredWays;
use crate::observe::Statistics;
use crate::store::CompiledPieces;
use crate::words::{BuildTimes, Ledger, ModelError, Progress, SymbolTable};
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::Store;
use piecewise_backend::device::Device;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use std::sync::Arc;

impl CompiledModel {
    /// A model whose weights are loaded and whose programs are bound, in the ways that `store` remembers
    /// where that is asked for. Nothing is captured.
    ///
    /// # Errors
    /// When the module is not planned, the launches break the plan, memory is short, or a weight is missing.
    pub(crate) fn assemble(
        module: Arc<Module>,
        options: &BuildOptions,
        compiled: CompiledPieces,
        store: &dyn Store,
        mut device: Box<dyn Device>,
        weights: Arc<dyn WeightSource>,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Self, ModelError> {
        let clock = device.clock();
        let since = |start| clock().saturating_duration_since(start);
        let started = clock();
        let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
        let layout = module.layout().ok_or(ModelError::Unplanned { part: "layout" })?;
        let symbols = SymbolTable::new(module.graph().symbols())?;
        let mut dispatcher = options.dispatcher.clone();
        dispatcher.order_own(&symbols);
        check_artifacts(&module, &compiled.artifacts)?;
        let check_end = since(started);
        let artifacts = compiled.artifacts.iter().flatten();
        let scratch = artifacts.map(Artifact::scratch).max().unwrap_or(0);
        let lowered = stitch.unique.keys().zip(&compiled.artifacts);
        let lowered = lowered.flat_map(|(unique, list)| list.iter().map(move |a| (unique, a)));
        let (read, logit_rows) = (&options.read_outputs, options.max_logit_rows);
        let ledger = Ledger::new(module.graph(), layout, scratch, symbols.bounds())
            .with_code(&module, &symbols, &dispatcher, lowered, compiled.footprint)
            .with_pinned(&module, &symbols, read, logit_rows);
        let mut origin = Origin::new(options, &symbols, ledger, compiled, weights);
        let memory = origin.load(&mut *device, &module, progress)?;
        let load_end = since(started);
        let staging = origin.stage(&mut *device, &module, &memory)?;
        let states = memory.states;
        origin.backed_early = custom_ops_mutate_states(&module);
        if origin.backs_early(options) {
            device.back(states)?;
        }
        let site = BindSite {
            module: &module,
            stitch,
            symbols: &symbols,
            memory: &memory,
            compiled: &origin.compiled,
        };
        let mut choices = Choices::default();
        choices.extend(&mut *device, &site, options.tune, store);
        let mut members = site.bind_all(&mut *device, &|unique, i| choices.of(unique, i))?;
        members.exclude(&options.capture_exclude, &module)?;
        let read_counts = Vec::with_capacity(symbols.bounds().len());
        let compiled_in = origin.compiled.time;
        let (compile, tuning) = (origin.compiled.counts.clone(), choices.report);
        origin.choices = choices;
        let bound_to = memory.bases();
        let mut model = Self {
            graphs: GraphSet::default(),
            members,
            staging,
            clock: StepClock::new(),
            tracer: None,
            ranges: None,
            memory,
            symbols,
            dispatcher,
            ways: MeasuredWays::default(),
            module,
            stats: Statistics { compile, tuning, ..Statistics::default() },
            origin,
            strict: options.strict,
            capture_when: options.capture,
            on_capture_failure: options.on_capture_failure,
            capture_attempts: options.capture_attempts,
            recapture_limit: options.recapture_limit,
            moves: 0,
            checks: options.checks,
            next_step: 0,
            last: None,
            read_counts,
            given: GivenInputs::default(),
            reduced: None,
            times: BuildTimes::default(),
            launches_only: false,
            background: Pace::default(),
            first_step: 0,
            is_lost: false,
            suspended: None,
            late: None,
            limit: None,
            bound_to,
            measures_padding: options.measure_padding,
            tune: options.tune,
            tune_budget: options.tune_budget,
            device,
        };
        model.times = BuildTimes {
            compile: compiled_in + check_end,
            load: load_end - check_end,
            bind: since(started) - load_end,
            ..BuildTimes::default()
        };
        Ok(model)
    }
}

/// Whether a custom op writes to a state: unlike a scatter, it can't be launched or captured while
/// the state has no backing.
fn custom_ops_mutate_states(module: &Module) -> bool {
    let graph = module.graph();
    graph.nodes().any(|node| match &graph.node(node).op {
        Op::Custom(call) => !call.mutates.is_empty(),
        _ => false,
    })
}
