//! Launches of a captured graph that follow the sizes of each replay: their nodes, and what those were set
//! to last.

use super::bound::BoundLaunch;
use super::driver::{Handle, KernelLaunch, Outcome};
use super::error::CallError;
use super::graph::Graph;
use super::prepared::AtSizes;
use std::cell::RefCell;
use std::sync::Arc;

/// The launches that follow, while their graph is captured.
#[derive(Debug, Default)]
pub(super) struct Following {
    launches: Vec<Arc<BoundLaunch>>,
    nodes: Vec<Handle>,
}

/// The launches of an executable graph that follow.
#[derive(Debug)]
pub(super) struct Followed {
    following: Following,
    /// What nodes are named by, and so kept beside the executable graph.
    _graph: Graph,
    last: RefCell<Last>,
}

/// What the nodes are set to, and room to compute what they are to be set to: a replay allocates nothing.
#[derive(Debug, Default)]
struct Last {
    set: AtSizes,
    /// Whether they are: not after one of them could not be set.
    is_known: bool,
    wanted: AtSizes,
}

/// Why nodes were not set.
#[derive(Debug)]
pub(super) enum SetError {
    /// A launch is not what a node can be set to.
    Launch(String),
    /// The driver refused.
    Call(CallError),
}

impl Following {
    /// Adds a launch with its node.
    pub(super) fn push(&mut self, launch: &Arc<BoundLaunch>, node: Handle) {
        self.launches.push(launch.clone());
        self.nodes.push(node);
    }

    /// The same in the executable graph that was made of `graph`, which was captured at `sizes`; nothing
    /// where none follows. `prepare` computes what the launches are at them.
    pub(super) fn of(
        self,
        graph: Graph,
        sizes: &[u64],
        prepare: impl FnOnce(&[Arc<BoundLaunch>], &mut AtSizes) -> Result<(), String>,
    ) -> Result<Option<Followed>, String> {
        if self.nodes.is_empty() {
            return Ok(None);
        }
        let mut last = Last { is_known: true, ..Last::default() };
        last.set.reset(sizes);
        prepare(&self.launches, &mut last.set)?;
        Ok(Some(Followed { following: self, _graph: graph, last: RefCell::new(last) }))
    }
}

impl Followed {
    /// Sets each node that is to be launched otherwise than it was set to last. `prepare` computes what the
    /// launches are at `sizes`.
    pub(super) fn set(
        &self,
        sizes: &[u64],
        prepare: impl FnOnce(&[Arc<BoundLaunch>], &mut AtSizes) -> Result<(), String>,
        mut set_kernel: impl FnMut(Handle, &KernelLaunch<'_>) -> Outcome<()>,
    ) -> Result<(), SetError> {
        let mut last = self.last.borrow_mut();
        let Last { set, is_known, wanted } = &mut *last;
        if *is_known && set.is_of(sizes) {
            return Ok(());
        }
        wanted.reset(sizes);
        prepare(&self.following.launches, wanted).map_err(SetError::Launch)?;
        let done = self.following.nodes.iter().enumerate().try_for_each(|(i, &node)| {
            let Some(kernel) = wanted.kernel(i) else {
                let launch = &self.following.launches[i].name;
                return Err(SetError::Launch(format!("launch `{launch}` has no work")));
            };
            let before = set.kernel(i).filter(|_| *is_known);
            match before.is_some_and(|before| before.is_like(&kernel)) {
                true => Ok(()),
                false => set_kernel(node, &kernel).map_err(SetError::Call),
            }
        });
        *is_known = done.is_ok();
        std::mem::swap(set, wanted);
        done
    }
}
