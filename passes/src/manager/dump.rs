//! Dumps: what every pass changed and remarked, as files.

use super::changes::Changes;
use super::error::PassError;
use super::observer::{AfterPass, Observer, PrintModule};
use piecewise_ir::module::Module;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Writes `NN-name.remarks.json` into a directory after each pass, where `NN` is the pass's
/// number in the pipeline from 1 on, and, if it changed something, `NN-name.before.pw`,
/// `NN-name.after.pw` and `NN-name.diff`. Of a pass that panics it writes the text before it.
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

    fn write(&self, name: String, contents: &str) -> Result<PathBuf, PassError> {
        let path = self.dir.join(name);
        match std::fs::write(&path, contents) {
            Ok(()) => Ok(path),
            Err(source) => Err(PassError::Dump { path, source }),
        }
    }
}

/// What the files of a pass are called before their endings.
fn stem(index: usize, name: &str) -> String {
    format!("{:02}-{name}", index + 1)
}

impl Observer for DumpDir {
    fn waits_for(&self) -> &[String] {
        &self.passes
    }

    fn before_run(&mut self, module: &Module) {
        self.changes.start(module);
    }

    fn panicked(
        &mut self,
        index: usize,
        name: &str,
        before: &str,
    ) -> Result<Option<PathBuf>, PassError> {
        self.write(format!("{}.before.pw", stem(index, name)), before).map(Some)
    }

    fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
        let change = self.changes.next(after.module);
        if !self.passes.is_empty() && !self.passes.iter().any(|pass| pass == after.name) {
            return Ok(ControlFlow::Continue(()));
        }
        let stem = stem(after.index, after.name);
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
