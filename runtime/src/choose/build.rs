//! Building a model: it is assembled, probed, measured and captured.

use crate::steps::{BuildOptions, CompiledModel};
use crate::store::CompiledPieces;
use crate::words::{CaptureWhen, ModelError, Progress};
use piecewise_backend::compiler::Store;
use piecewise_backend::device::Device;
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::module::Module;
use std::sync::Arc;
use std::time::Duration;

impl CompiledModel {
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
        device: Box<dyn Device>,
        weights: Arc<dyn WeightSource>,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Self, ModelError> {
        let clock = device.clock();
        let since = |start| clock().saturating_duration_since(start);
        let started = clock();
        let mut model =
            Self::assemble(module, &options, compiled, store, device, weights, progress)?;
        let bound = since(started);
        let backed_early = model.origin.backs_early(&options);
        let states = model.memory.states;
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
        model.times.measure = measure;
        model.times.capture = since(started) - bound - measure;
        Ok(model)
    }
}
