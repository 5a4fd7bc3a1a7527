//! Which sizes a running model still lowers, and what is on its way.

use crate::store::{CompiledPieces, LateCompiler};
use crate::words::ModelError;
use piecewise_backend::tuning::TuneMode;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Sizes that are specialized once a step wants them.
pub(super) struct LateSizes {
    pub(super) compiler: Arc<LateCompiler>,
    pub(super) tune: TuneMode,
    /// Those that nothing is lowered for.
    pub(super) wanted: BTreeSet<u64>,
    /// Those that failed: each is tried again when graphs that failed are.
    pub(super) failed: BTreeSet<u64>,
    /// The one that is being lowered.
    pub(super) running: Option<(u64, JoinHandle<Result<CompiledPieces, ModelError>>)>,
}
