//! What each pass changed, as text.

use super::diff::unified_diff;
use super::error::PassError;
use super::observer::{AfterPass, Observer, PrintModule};
use piecewise_ir::module::Module;
use std::ops::ControlFlow;

/// The text of a module before and after one pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// As printed when the pass began.
    pub before: String,
    /// As printed when the pass had ended.
    pub after: String,
}

impl Change {
    /// The difference, headed by the names of both sides.
    pub fn diff(&self, before: &str, after: &str) -> String {
        unified_diff(&self.before, &self.after, before, after)
    }
}

/// Follows the text of a module over a run.
#[derive(Clone, Debug)]
pub struct Changes {
    print: PrintModule,
    text: String,
}

impl Changes {
    /// Texts are made by `print`.
    pub fn new(print: PrintModule) -> Self {
        Self { print, text: String::new() }
    }

    /// Takes the text before the first pass.
    pub fn start(&mut self, module: &Module) {
        self.text = (self.print)(module);
    }

    /// What changed since the last call, if anything did.
    pub fn next(&mut self, module: &Module) -> Option<Change> {
        let after = (self.print)(module);
        if after == self.text {
            return None;
        }
        let before = std::mem::replace(&mut self.text, after.clone());
        Some(Change { before, after })
    }
}

/// Hands the diff of each pass that changed something to a sink, headed by what it matched.
#[derive(derive_more::Debug)]
pub struct PrintChanged<W> {
    changes: Changes,
    #[debug(skip)]
    sink: W,
}

impl<W: FnMut(String)> PrintChanged<W> {
    /// Texts are made by `print`.
    pub fn new(print: PrintModule, sink: W) -> Self {
        Self { changes: Changes::new(print), sink }
    }
}

impl<W: FnMut(String)> Observer for PrintChanged<W> {
    fn before_run(&mut self, module: &Module) {
        self.changes.start(module);
    }

    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
        if let Some(change) = self.changes.next(after.module) {
            let matched = after.report.matched.iter();
            let rules = matched.map(|(rule, times)| format!("{rule} x{times}"));
            let rules = Vec::from_iter(rules).join(", ");
            let behind = match rules.is_empty() {
                true => format!("after {}", after.name),
                false => format!("after {}: {rules}", after.name),
            };
            (self.sink)(change.diff(&format!("before {}", after.name), &behind));
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Hands a line for each pass to a sink: its number, its name, and whether it ran and changed
/// something.
#[derive(derive_more::Debug)]
pub struct BisectLog<W> {
    changes: Changes,
    #[debug(skip)]
    sink: W,
}

impl<W: FnMut(String)> BisectLog<W> {
    /// Texts are made by `print`.
    pub fn new(print: PrintModule, sink: W) -> Self {
        Self { changes: Changes::new(print), sink }
    }
}

impl<W: FnMut(String)> Observer for BisectLog<W> {
    fn before_run(&mut self, module: &Module) {
        self.changes.start(module);
    }

    fn skipped(&mut self, index: usize, name: &str) {
        (self.sink)(format!("bisect: not running pass ({}) {name}", index + 1));
    }

    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
        let changed = match self.changes.next(after.module) {
            Some(_) => "changed",
            None => "no change",
        };
        (self.sink)(format!(
            "bisect: running pass ({}) {}: {changed}",
            after.index + 1,
            after.name
        ));
        Ok(ControlFlow::Continue(()))
    }
}
