//! Why a run of passes failed.

use crate::pipeline::PipelineError;
use piecewise_ir::diagnostic::Diagnostics;
use std::path::PathBuf;

/// Why a run of passes failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum PassError {
    /// The pipeline names something that does not exist.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The module lacks what the pass works on.
    #[error("pass `{pass}` needs {needs}, which the module does not have; run `{run_first}` first")]
    Missing {
        pass: String,
        needs: &'static str,
        /// The pass that makes it.
        run_first: &'static str,
    },
    /// It found something that it can't handle; the source says what.
    #[error("pass `{pass}` failed: {source}")]
    Failed { pass: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// A rule of a rewrite is wrong.
    #[error("the rule `{rule}` {what}, at {place}; `--bisect-rewrites` shows what it was given")]
    Rule {
        rule: &'static str,
        /// The node that was there.
        place: String,
        what: String,
    },
    /// It panicked.
    #[error(
        "pass `{pass}` panicked: {said}; that is a mistake in the pass, and `piecewise opt FILE --pipeline \
         '{spec}'` does it again, where FILE is what it was given ({})",
        .kept.as_ref().map_or("`dump.dir`, or `--dump-dir`, keeps it".into(), |file| file.display().to_string())
    )]
    Panicked {
        pass: String,
        /// What the panic said.
        said: String,
        /// The pass with its options, as a pipeline has it.
        spec: String,
        /// The text of the module before the pass.
        before: String,
        /// The file that it is in, where an observer keeps it.
        kept: Option<PathBuf>,
    },
    /// The module does not verify.
    #[error("the module is not valid after {after}:\n{listing}")]
    Invalid {
        /// The pass that ran last, or `the input`.
        after: String,
        diagnostics: Diagnostics,
        /// The module, with each finding under the line that it is about.
        listing: String,
    },
    /// The last pass left a plan that is not sound.
    #[error("the plan can't be used after {after}; mend that, or run `plan` after it:\n{listing}")]
    Unsound {
        /// The pass that ran last, or the input.
        after: String,
        diagnostics: Diagnostics,
        /// The module, with each finding under the line that it is about.
        listing: String,
    },
    /// A dump can't be written.
    #[error("can't write the dump {}: {source}; choose another directory", .path.display())]
    Dump { path: PathBuf, source: std::io::Error },
}

impl PassError {
    /// The failure of `pass` with its own error.
    pub fn failed(
        pass: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed { pass: pass.into(), source: source.into() }
    }
}
