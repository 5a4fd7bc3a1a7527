//! Captured graphs, ready to replay.

use super::bound::BoundLaunch;
use super::followed::Followed;
use super::graph::{GraphExec, GraphSummary};
use super::lt_handle::LtHandle;
use super::memory::AddressRange;
use super::stamps::Stamps;
use crate::binding;
use crate::device::{BoundAddress, GraphShape, Replayable};
use std::sync::Arc;

/// A captured graph. It keeps alive everything it points to.
#[derive(Debug)]
pub struct CudaCaptured {
    // Dropped first: it waits for a replay that still runs.
    pub(super) exec: GraphExec,
    pub(super) label: String,
    pub(super) sizes: Vec<u64>,
    pub(super) summary: GraphSummary,
    /// The launches that follow the sizes of each replay, if any do.
    pub(super) followed: Option<Followed>,
    pub(super) launches: Vec<Arc<BoundLaunch>>,
    /// Where the launches of each program end.
    pub(super) ends: Vec<usize>,
    /// What a replay needs backed, each once: launches share few ranges.
    pub(super) needed: Vec<Arc<AddressRange>>,
    pub(super) stamps: Option<Stamps>,
    /// Kernels of the library live with its handle.
    pub(super) _lt: Option<Arc<LtHandle>>,
}

impl CudaCaptured {
    /// What the driver says is in it.
    pub fn summary(&self) -> &GraphSummary {
        &self.summary
    }
}

impl Replayable for CudaCaptured {
    fn shape(&self) -> GraphShape {
        GraphShape {
            launches: self.launches.len() as u64,
            nodes: self.summary.nodes as u64,
            programmatic_edges: self.summary.programmatic_edges as u64,
        }
    }

    fn addresses(&self) -> Vec<BoundAddress<'_>> {
        let launches = self.launches.iter();
        let launches = launches.map(|bound| (bound.name.as_str(), bound.arguments.iter()));
        binding::addresses(launches, &self.ends)
    }
}
