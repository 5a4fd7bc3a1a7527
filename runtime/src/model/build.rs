//! Building a model: close the arena over the artifacts, load, bind, capture.

use super::CompiledModel;
use super::bind::BindSite;
use super::choose::Choices;
use super::clock::StepClock;
use super::given::GivenInputs;
use super::graphs::GraphSet;
use super::launches::check_artifacts;
use super::options::BuildOptions;
use super::origin::Origin;
use super::pace::Pace;
use crate::artifact_store::CompiledPieces;
use crate::dispatch::MeasuredWays;
use crate::stats::Statistics;
use crate::words::{BuildTimes, CaptureWhen, Ledger, ModelError, Progress, SymbolTable};
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::Store;
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use std::sync::Arc;
use std::time::Duration;

impl<D: Device> CompiledModel<D> {
    /// Builds a model from a planned module and its artifacts, compiled for the dispatcher of
    /// `options`; `store` remembers what is chosen by measurement. `weights` are kept: what the
    /// device loses is made from them again.
    ///
    /// # Errors
    /// When the module is not planned, the launches break the plan, memory is short, a weight is
    /// missing, or a capture fails and `options` make that an error.
    pub fn build(
        module: Arc<Module>,
        options: BuildOptions,
        compiled: CompiledPieces,
        store: &dyn Store,
        mut device: D,
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
        let mut origin = Origin::new(&options, &symbols, ledger, compiled, weights);
        let memory = origin.load(&mut device, &module, progress)?;
        let load_end = since(started);
        let staging = origin.stage(&mut device, &module, &memory)?;
        let states = memory.states;
        // What is measured runs all its rows, which a warm-up and a capture do not.
        origin.backed_early = custom_ops_mutate_states(&module);
        let backed_early =
            origin.backed_early || options.tune == TuneMode::Measure || !options.probes.is_empty();
        if backed_early {
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
        choices.extend(&mut device, &site, options.tune, store);
        let mut members = site.bind_all(&mut device, &|unique, i| choices.of(unique, i))?;
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
        let bind_end = since(started);
        model.probe(&options.probes)?;
        let wanted = model.dispatcher.mode;
        let (mode, reason) = model.supported_mode(wanted);
        if let Some(reason) = reason {
            if options.strict {
                return Err(ModelError::Mode { mode: wanted.name(), reason });
            }
            tracing::warn!("graph mode {} reduced to {}: {reason}", wanted.name(), mode.name());
            model.reduced = Some(reason);
            model.dispatcher.mode = mode;
            model.set_ledger(model.ledger_of(&model.dispatcher));
        }
        model.list_graphs();
        model.warm_up()?;
        let measure = clock();
        let open = match options.tune {
            TuneMode::Off => Vec::new(),
            TuneMode::Load | TuneMode::Measure => model.load_launched(store),
        };
        let is_compared =
            options.capture == CaptureWhen::Startup && model.will_compare_launches(&open);
        let for_launches = if is_compared { model.launches_budget() } else { Duration::ZERO };
        match options.tune {
            TuneMode::Off => {}
            TuneMode::Load => model.count_unmeasured(),
            TuneMode::Measure => {
                let for_ways = match options.tune_budget {
                    Duration::MAX => Duration::MAX,
                    budget => budget.saturating_sub(for_launches),
                };
                let mut has_time = || since(measure) < for_ways;
                let steps = &options.tuning_steps;
                model.measure_choices(steps, store, &mut has_time, &mut |p| progress(p))?;
            }
        }
        let measure = since(measure);
        if options.capture == CaptureWhen::Startup {
            model.capture_listed(options.on_capture_failure, &mut |p| progress(p), None)?;
            model.measure_padding()?;
            if options.tune == TuneMode::Measure {
                let left = model.left_for_launches(measure, for_launches);
                model.choose_launched(&open, &options.tuning_steps, store, left)?;
            }
        }
        if backed_early {
            // What a warm-up wrote is not for the first step to find.
            model.device.drop_backing(states)?;
        }
        model.device.back(states)?;
        model.times = BuildTimes {
            compile: compiled_in + check_end,
            load: load_end - check_end,
            bind: bind_end - load_end,
            measure,
            capture: since(started) - bind_end - measure,
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
