//! Building a model: close the arena over the artifacts, load, bind, capture.

use super::CompiledModel;
use super::bind::BindSite;
use super::choose::Choices;
use super::clock::StepClock;
use super::error::ModelError;
use super::graphs::{GraphSet, OnCaptureFailure};
use super::launches::check_artifacts;
use super::memory::Ledger;
use super::origin::Origin;
use super::pace::Pace;
use super::progress::Progress;
use crate::artifact_store::CompiledPieces;
use crate::batch::{Probe, SyntheticStep};
use crate::dispatch::{Dispatcher, MeasuredWays};
use crate::stats::Statistics;
use crate::symbols::SymbolTable;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::Store;
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a model is built.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Lists and bounds of dispatch, with the graph mode asked for.
    pub dispatcher: Dispatcher,
    /// The most rows that a step may want logits for; beyond the cap of one head call, the head
    /// runs several times. At least that cap.
    pub max_logit_rows: u64,
    /// The outputs that are read back, by position.
    pub read_outputs: Vec<usize>,
    /// When graphs are captured.
    pub capture: CaptureWhen,
    /// What a failed capture does.
    pub on_capture_failure: OnCaptureFailure,
    /// Failures in a row after which a graph is no longer captured; 0 is never.
    pub capture_attempts: u32,
    /// Layers that are launched and never captured, by the scopes in which the model's code made
    /// them: `model.layers.3`, or `model.layers.3.mlp`.
    pub capture_exclude: Vec<String>,
    /// Steps that show what the custom ops can be captured for; without any, what they declare is
    /// believed.
    pub probes: Vec<Probe>,
    /// Whether ways and algorithms are chosen by measurement.
    pub tune: TuneMode,
    /// How long measuring may take; what is not reached is left to the next start.
    pub tune_budget: Duration,
    /// Steps that fill the sizes of captured ones, to measure ways in. Without one, a step's pieces are
    /// measured alone.
    pub tuning_steps: Vec<SyntheticStep>,
    /// Whether a step that does not replay, or a mode that can't be, is an error.
    pub strict: bool,
    /// Checks that run with every step.
    pub checks: Checks,
    /// Whether it is measured, once the graphs are captured and whenever the mode is set, for which steps a
    /// replay of the padded size takes longer than another way.
    pub measure_padding: bool,
}

/// How long the parts of building took, each to the end of its work on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BuildTimes {
    /// Every unique piece at every size, and the check of the launches.
    pub compile: Duration,
    /// Reserving memory and making the weights.
    pub load: Duration,
    /// Binding programs and making host blocks.
    pub bind: Duration,
    /// Choosing ways by measurement: no part of a start that finds them remembered.
    pub measure: Duration,
    /// Warming up, capturing, and mapping the states.
    pub capture: Duration,
}

/// When graphs are captured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureWhen {
    /// All of them while the model is built.
    #[default]
    Startup,
    /// Each one by the first step that would replay it.
    Lazy,
    /// Between steps, those first that most steps have wanted; until then steps are launched.
    Background,
}

/// Checks that run with every step, for debugging.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checks {
    /// Fill float padding and dead bytes with NaN before each step, and find outputs that are read before
    /// they are there.
    pub poison: bool,
    /// Compare the addresses of each graph with the memory's before each replay.
    pub addresses: bool,
    /// Launch each step again and compare with its replay.
    pub compare: bool,
}

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
        let started = Instant::now();
        let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
        let layout = module.layout().ok_or(ModelError::Unplanned { part: "layout" })?;
        let symbols = SymbolTable::new(module.graph().symbols())?;
        let mut dispatcher = options.dispatcher.clone();
        dispatcher.order_own(&symbols);
        check_artifacts(&module, &compiled.artifacts)?;
        let check_end = started.elapsed();
        let artifacts = compiled.artifacts.iter().flatten();
        let scratch = artifacts.map(Artifact::scratch).max().unwrap_or(0);
        let lowered = stitch.unique.keys().zip(&compiled.artifacts);
        let lowered = lowered.flat_map(|(unique, list)| list.iter().map(move |a| (unique, a)));
        let (read, logit_rows) = (&options.read_outputs, options.max_logit_rows);
        let ledger = Ledger::new(module.graph(), layout, scratch, symbols.bounds())
            .with_code(&module, &symbols, &dispatcher, lowered, compiled.footprint)
            .with_pinned(&module, &symbols, read, logit_rows);
        let mut origin = Origin::new(&symbols, ledger, compiled, weights);
        origin.read(&options.read_outputs, options.max_logit_rows, &symbols);
        origin.capture_exclude.clone_from(&options.capture_exclude);
        let memory = origin.load(&mut device, &module, progress)?;
        let load_end = started.elapsed();
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
        let read_counts = Vec::with_capacity(symbols.len());
        let compiled_in = origin.compiled.time;
        let (compile, tuning) = (origin.compiled.counts.clone(), choices.report);
        let max_logit_rows = origin.max_logit_rows;
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
            checks: options.checks,
            max_logit_rows,
            next_step: 0,
            last: None,
            read_counts,
            lowered: None,
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
            device,
        };
        let bind_end = started.elapsed();
        model.probe(&options.probes)?;
        let wanted = model.dispatcher.mode;
        let (mode, reason) = model.supported_mode(wanted);
        if let Some(reason) = reason {
            if options.strict {
                return Err(ModelError::Mode { mode: wanted.name(), reason });
            }
            tracing::warn!("graph mode {} lowered to {}: {reason}", wanted.name(), mode.name());
            model.lowered = Some(reason);
            model.dispatcher.mode = mode;
            model.set_ledger(model.ledger_of(&model.dispatcher));
        }
        model.list_graphs();
        model.warm_up()?;
        let measure = Instant::now();
        match options.tune {
            TuneMode::Off => {}
            TuneMode::Load => model.count_unmeasured(),
            TuneMode::Measure => {
                let mut has_time = || measure.elapsed() < options.tune_budget;
                let steps = &options.tuning_steps;
                model.measure_choices(steps, None, store, &mut has_time, &mut |p| progress(p))?;
            }
        }
        let measure = measure.elapsed();
        if options.capture == CaptureWhen::Startup {
            model.capture_all(options.on_capture_failure, &mut |p| progress(p))?;
            model.measure_padding()?;
            if options.tune == TuneMode::Measure {
                model.measure_launches(&options.tuning_steps)?;
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
            capture: started.elapsed() - bind_end - measure,
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
