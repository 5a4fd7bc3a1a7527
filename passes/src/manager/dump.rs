//! Dumps: what every pass changed and remarked, as files.

use super::changes::Changes;
use super::error::PassError;
use super::observer::{AfterPass, Observer, PrintModule};
use piecewise_ir::module::Module;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Writes `NN-name.remarks.json` into a directory after each pass, where `NN` is the pass's
/// number in the pipeline from 1 on, and, if it changed something, `NN-name.before.pw`,
/// `NN-name.after.pw` and `NN-name.diff`.
#[derive(Clone, Debug)]
pub struct DumpDir {
    dir: PathBuf,
    changes: Changes,
    passes: Vec<String>,
}

impl DumpDir {
    /// A dump into `dir`, which is made when it is missing. Files of an earlier dump are replaced.
    ///
    /// # Errors
    /// [`PassError::Dump`] when the directory can't be made.
    pub fn new(dir: impl Into<PathBuf>, print: PrintModule) -> Result<Self, PassError> {
        let dir = dir.into();
        std::fs::create_dir_all(&dir)
            .map_err(|source| PassError::Dump { path: dir.clone(), source })?;
        Ok(Self { dir, changes: Changes::new(print), passes: Vec::new() })
    }

    /// Dumps after the passes of these names only; an empty list is all of them.
    #[must_use]
    pub fn only(mut self, passes: Vec<String>) -> Self {
        self.passes = passes;
        self
    }

    fn write(&self, name: String, contents: &str) -> Result<(), PassError> {
        let path = self.dir.join(name);
        std::fs::write(&path, contents).map_err(|source| PassError::Dump { path, source })
    }
}

impl Observer for DumpDir {
    fn waits_for(&self) -> &[String] {
        &self.passes
    }

    fn before_run(&mut self, module: &Module) {
        self.changes.start(module);
    }

    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
        let change = self.changes.next(after.module);
        if !self.passes.is_empty() && !self.passes.iter().any(|pass| pass == after.name) {
            return Ok(ControlFlow::Continue(()));
        }
        let stem = format!("{:02}-{}", after.index + 1, after.name);
        if let Some(change) = change {
            let [before, behind] = ["before", "after"].map(|side| format!("{stem}.{side}.pw"));
            self.write(format!("{stem}.diff"), &change.diff(&before, &behind))?;
            self.write(before, &change.before)?;
            self.write(behind, &change.after)?;
        }
        let json = serde_json::to_string_pretty(after.report)
            .map_err(|source| PassError::failed(after.name, source))?;
        self.write(format!("{stem}.remarks.json"), &(json + "\n"))?;
        Ok(ControlFlow::Continue(()))
    }
}
