//! The pass manager: runs a pipeline over a module, verifies, times and reports each pass, and proves the
//! plan in the end.

mod budget;
mod changes;
mod diff;
mod dump;
mod error;
mod observer;
mod pairs;
mod panics;
mod pass;
mod registry;

pub use budget::Rewrites;
pub use changes::{BisectLog, Change, Changes, PrintChanged};
pub use diff::unified_diff;
pub use dump::DumpDir;
pub use error::PassError;
pub use observer::{AfterPass, Observer, PrintAfter, PrintModule, StopAfter};
pub use pairs::paired_values;
pub use panics::panic_text;
pub use pass::{Pass, PassContext, PassReport, Remark};
pub use registry::{OptionReader, Registry};

use crate::check::find_overlaps;
use crate::pipeline::{Pipeline, PipelineError, nearest};
use panics::panicked;
use piecewise_ir::diagnostic::Diagnostics;
use piecewise_ir::module::Module;
use piecewise_ir::text::render;
use piecewise_ir::verify::verify_module_with;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What one pass of a run did.
#[derive(Clone, Debug)]
pub struct PassRun {
    /// The pass by its name in the pipeline.
    pub name: String,
    /// What it matched and remarked.
    pub report: PassReport,
    /// How long the pass itself took, without verification and observers.
    pub elapsed: Duration,
}

/// What a run did, pass by pass.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    /// The passes that ran, in order.
    pub passes: Vec<PassRun>,
    /// Whether an observer ended the run before the last pass.
    pub stopped: bool,
    /// The rewrites of all passes, and under a limit the last of them.
    pub rewrites: Rewrites,
}

impl RunReport {
    /// The report of the last run of the pass `name`.
    pub fn of(&self, name: &str) -> Option<&PassReport> {
        self.passes.iter().rev().find(|run| run.name == name).map(|run| &run.report)
    }
}

/// Runs passes in order over a module.
#[derive(derive_more::Debug)]
pub struct PassManager<'a> {
    #[debug("{:?}", passes.iter().map(|pass| pass.name()).collect::<Vec<_>>())]
    passes: Vec<Box<dyn Pass>>,
    /// The passes with their options, as the pipeline has them.
    #[debug(skip)]
    specs: Vec<String>,
    #[debug("{}", observers.len())]
    observers: Vec<Box<dyn Observer + 'a>>,
    only_first: Option<usize>,
}

impl<'a> PassManager<'a> {
    /// A manager of the passes of `pipeline`, made by `registry`.
    ///
    /// # Errors
    /// When the registry lacks a pass or a pass refuses an option.
    pub fn new(pipeline: &Pipeline, registry: &Registry) -> Result<Self, PipelineError> {
        let passes = pipeline.passes.iter().map(|spec| registry.make(spec));
        let passes = passes.collect::<Result<Vec<_>, _>>()?;
        let specs = pipeline.passes.iter().map(ToString::to_string).collect();
        Ok(Self { passes, specs, observers: Vec::new(), only_first: None })
    }

    /// Calls `observer` after each pass, after the observers added before.
    #[must_use]
    pub fn observe(mut self, observer: Box<dyn Observer + 'a>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Leaves out the passes after the first `n` of the pipeline, but for the required ones
    /// ([`Pass::is_required`]): with `n` halved again and again, the pass that breaks something
    /// is found, and each module can still be run.
    #[must_use]
    pub fn only_first(mut self, n: usize) -> Self {
        self.only_first = Some(n);
        self
    }

    /// That every pass runs which an observer waits for.
    fn check_awaited(&self) -> Result<(), PipelineError> {
        let passes = self.passes.iter().enumerate();
        let runs = passes.filter(|(index, pass)| {
            pass.is_required() || self.only_first.is_none_or(|first| *index < first)
        });
        let running = Vec::from_iter(runs.map(|(_, pass)| pass.name()));
        check_awaited(&self.observers, &running)
    }

    fn verify(&self, after: &str, module: &Module, cx: &PassContext) -> Result<(), PassError> {
        let verified = verify_module_with(module, &cx.defs);
        verified.map_err(|diagnostics| PassError::Invalid {
            after: after.to_owned(),
            listing: listed(module, &diagnostics),
            diagnostics,
        })
    }

    /// Runs one pass over `module`, which is what it was before where the pass panics.
    fn run_pass(
        &mut self,
        index: usize,
        module: &mut Module,
        cx: &mut PassContext,
    ) -> Result<PassReport, PassError> {
        let before = module.clone();
        let pass = &self.passes[index];
        let run = AssertUnwindSafe(|| {
            let report = pass.run(module, cx)?;
            if module.stitch().is_none() {
                module.graph_mut().compact();
            }
            Ok(report)
        });
        catch_unwind(run).unwrap_or_else(|panic| {
            let (name, spec) = (pass.name(), &self.specs[index]);
            let error = panicked(&mut self.observers, (index, name), spec, &before, &*panic);
            *module = before;
            Err(error)
        })
    }

    /// Runs the passes over `module`.
    ///
    /// # Errors
    /// When an observer waits for a pass that does not run, before any has; when a pass or an observer
    /// fails, the module is not valid between passes or its plan in the end is not sound; the module is
    /// then as the failed pass left it, and only good for a dump. [`PassError::Panicked`], with the module
    /// as it was before the pass.
    pub fn run(
        &mut self,
        module: &mut Module,
        cx: &mut PassContext,
    ) -> Result<RunReport, PassError> {
        self.check_awaited()?;
        self.verify("the input", module, cx)?;
        if module.stitch().is_none() {
            module.graph_mut().compact();
        }
        self.observers.iter_mut().for_each(|observer| observer.before_run(module));
        let mut run = RunReport::default();
        for index in 0..self.passes.len() {
            let name = self.passes[index].name();
            let is_past = self.only_first.is_some_and(|n| index >= n);
            if is_past && !self.passes[index].is_required() {
                self.observers.iter_mut().for_each(|observer| observer.skipped(index, name));
                continue;
            }
            let span = tracing::info_span!("pass", name);
            let _entered = span.enter();
            let start = Instant::now();
            let report = self.run_pass(index, module, cx)?;
            let name = self.passes[index].name();
            let elapsed = start.elapsed();
            tracing::debug!(matched = report.total(), ?elapsed, "pass done");
            let verified = self.verify(name, module, cx);
            let after = AfterPass { index, name, module, report: &report, elapsed };
            let mut stopped = false;
            for observer in &mut self.observers {
                stopped |= observer.after_pass(&after)? == ControlFlow::Break(());
            }
            verified?;
            run.passes.push(PassRun { name: name.to_owned(), report, elapsed });
            if stopped {
                run.stopped = index + 1 < self.passes.len();
                break;
            }
        }
        run.rewrites = cx.rewrites.clone();
        // Whatever ran last may be anybody's.
        if module.layout().is_some() {
            let last = run.passes.last().map(|run| format!("`{}`, the last pass", run.name));
            let after = last.unwrap_or_else(|| "the input".to_owned());
            find_overlaps(module).map_err(|diagnostics| PassError::Unsound {
                after,
                listing: listed(module, &diagnostics),
                diagnostics,
            })?;
        }
        Ok(run)
    }
}

/// The module with each finding under its line; the findings alone where ids lead nowhere, so that it
/// has no text.
fn listed(module: &Module, found: &Diagnostics) -> String {
    match found.items.iter().any(|item| item.code.starts_with("V00")) {
        true => found.to_string(),
        false => render(module, found).trim_end().to_owned(),
    }
}

/// That every pass is among those that run which an observer waits for.
///
/// # Errors
/// [`PipelineError::NotRun`] for the first that is not.
pub fn check_awaited<'a>(
    observers: &[Box<dyn Observer + 'a>],
    running: &[&str],
) -> Result<(), PipelineError> {
    let awaited = observers.iter().flat_map(|observer| observer.waits_for());
    for name in awaited {
        if !running.contains(&name.as_str()) {
            return Err(PipelineError::NotRun {
                name: name.clone(),
                suggestion: nearest(name, running.iter().copied()),
                running: running.iter().map(|&name| name.to_owned()).collect(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
