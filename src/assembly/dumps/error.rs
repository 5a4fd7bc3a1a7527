//! Why a dump is not written.

use piecewise_passes::PassError;
use std::path::PathBuf;

/// Why a dump is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum DumpError {
    /// A choice of what goes into a folder, without one.
    #[error("{key} chooses what is dumped, and dump.dir is not set: set it, or leave {key} out")]
    NoFolder { key: &'static str },
    /// A pass that is not there.
    #[error("there is no pass `{name}` to dump after{near}; known passes: {known}")]
    NoPass {
        name: String,
        /// The pass that may be meant.
        near: String,
        known: String,
    },
    /// A unique piece that is not there.
    #[error("there is no unique piece {name:?} to dump; there are {there}")]
    NoPiece { name: String, there: String },
    /// A file or a folder.
    #[error("can't write the dump {}: {source}; is there room, and may you write there?", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// A piece that can't be shown.
    #[error("a piece can't be dumped as JSON: {0}")]
    Json(String),
    /// The folder of the passes.
    #[error(transparent)]
    Pass(#[from] PassError),
}
