//! Observers: what dumps, prints and early stops are built on.

use super::error::PassError;
use super::pass::PassReport;
use piecewise_ir::module::Module;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// Gives the text of a module.
pub type PrintModule = fn(&Module) -> String;

/// The state of a run after one pass.
#[derive(Clone, Copy, Debug)]
pub struct AfterPass<'a> {
    /// The position of the pass in the pipeline.
    pub index: usize,
    /// The pass as the pipeline calls it.
    pub name: &'a str,
    /// The module as it left it, compacted. It may turn out invalid after observers saw it.
    pub module: &'a Module,
    /// How often it rewrote what, and its remarks.
    pub report: &'a PassReport,
    /// Of the pass alone, without what observers of it took.
    pub elapsed: Duration,
}

/// Is told of a run and of each of its passes.
pub trait Observer {
    /// The passes that it waits for by name, each of which must run; empty where it takes them as they
    /// come.
    fn waits_for(&self) -> &[String] {
        &[]
    }

    /// Sees the module before the first pass, compacted.
    fn before_run(&mut self, module: &Module) {
        let _ = module;
    }

    /// Is told that the pass at position `index` of the pipeline is left out by a bisection.
    fn skipped(&mut self, index: usize, name: &str) {
        let _ = (index, name);
    }

    /// Is told that the pass at position `index` panicked, and what it was given; says where it keeps
    /// that, if it does.
    ///
    /// # Errors
    /// When it can't be kept.
    fn panicked(
        &mut self,
        index: usize,
        name: &str,
        before: &str,
    ) -> Result<Option<PathBuf>, PassError> {
        let _ = (index, name, before);
        Ok(None)
    }

    /// Sees the module after a pass; `Break` ends the run here.
    ///
    /// # Errors
    /// When it can't do its work, which fails the run.
    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError>;
}

/// Ends the run after a pass.
#[derive(Clone, Debug)]
pub struct StopAfter(
    /// The pass, by its name in the pipeline's text.
    pub String,
);

impl Observer for StopAfter {
    fn waits_for(&self) -> &[String] {
        std::slice::from_ref(&self.0)
    }

    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
        Ok(if after.name == self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// Hands the text of the module to a sink after one pass, or after every pass.
#[derive(derive_more::Debug)]
pub struct PrintAfter<W> {
    /// The pass; all passes if `None`.
    pub pass: Option<String>,
    /// Gives the text of a module.
    pub print: PrintModule,
    /// Takes the name of the pass and the text.
    #[debug(skip)]
    pub sink: W,
}

impl<W: FnMut(&str, String)> Observer for PrintAfter<W> {
    fn waits_for(&self) -> &[String] {
        self.pass.as_slice()
    }

    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
        if self.pass.as_ref().is_none_or(|pass| pass == after.name) {
            (self.sink)(after.name, (self.print)(after.module));
        }
        Ok(ControlFlow::Continue(()))
    }
}
