//! The graphs of a driver without a GPU: what is captured, what is made of it, and what is set in that.

use super::noted::Noted;
use piecewise_backend::cuda::CallError;
use piecewise_backend::cuda::driver::{GraphEdge, GraphNode, Handle, Outcome};
use std::collections::BTreeMap;

/// A call that returned this status.
pub(super) fn failed<T>(call: &'static str, code: u32) -> Outcome<T> {
    let (name, description) = ("simulated".to_owned(), "simulated".to_owned());
    Err(CallError { call, code, name, description })
}

/// What a graph consists of: kernels, each with its node, and what was captured beside.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    kernels: Vec<(Handle, Noted)>,
    beside: Vec<GraphNode>,
}

impl Graph {
    pub(super) fn nodes(&self) -> Vec<GraphNode> {
        let kernels = self.kernels.iter().map(|(_, noted)| GraphNode::Kernel {
            name: noted.name.clone(),
            grid: noted.grid,
            block: [1; 3],
        });
        kernels.chain(self.beside.iter().cloned()).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// The kernels of the capture under way.
    capture: Option<Vec<(Handle, Noted)>>,
    /// What a capture is to hold beside kernels.
    pub(super) beside: Vec<GraphNode>,
    pub(super) loses_edges: bool,
    /// Captured ones and executable ones.
    known: BTreeMap<Handle, Graph>,
    /// What each executable one was made from.
    made_from: BTreeMap<Handle, Handle>,
    /// What was set in executable ones.
    pub(super) set: Vec<Noted>,
}

impl Graphs {
    pub(super) fn is_capturing(&self) -> bool {
        self.capture.is_some()
    }

    pub(super) fn begin(&mut self) {
        self.capture = Some(Vec::new());
    }

    /// Notes a kernel in the capture under way; gives it back where there is none.
    pub(super) fn note(&mut self, node: Handle, noted: Noted) -> Option<Noted> {
        match &mut self.capture {
            Some(capture) => {
                capture.push((node, noted));
                None
            }
            None => Some(noted),
        }
    }

    /// What was captured; nothing where that is no node.
    pub(super) fn end(&mut self) -> Outcome<Option<Graph>> {
        let Some(kernels) = self.capture.take() else { return failed("cuStreamEndCapture", 901) };
        let graph = Graph { kernels, beside: self.beside.clone() };
        Ok((!graph.kernels.is_empty() || !graph.beside.is_empty()).then_some(graph))
    }

    pub(super) fn keep(&mut self, handle: Handle, graph: Graph) {
        self.known.insert(handle, graph);
    }

    pub(super) fn forget(&mut self, handle: Handle) {
        self.known.remove(&handle);
        self.made_from.remove(&handle);
    }

    pub(super) fn last_node(&self) -> Outcome<Handle> {
        let last = self.capture.as_ref().and_then(|kernels| kernels.last());
        last.map_or_else(|| failed("cuStreamGetCaptureInfo_v3", 500), |(node, _)| Ok(*node))
    }

    pub(super) fn of(&self, handle: Handle) -> &Graph {
        &self.known[&handle]
    }

    pub(super) fn edges(&self, graph: Handle) -> Vec<GraphEdge> {
        let Graph { kernels, beside } = self.of(graph);
        let own = (1..kernels.len()).map(|to| {
            let programmatic = kernels[to].1.programmatic && !self.loses_edges;
            GraphEdge { from: to - 1, to, programmatic }
        });
        let others = kernels.len() + 1..kernels.len() + beside.len();
        let others = others.map(|to| GraphEdge { from: to - 1, to, programmatic: true });
        own.chain(others).collect()
    }

    pub(super) fn instantiate(&mut self, graph: Handle, exec: Handle) {
        self.keep(exec, self.of(graph).clone());
        self.made_from.insert(exec, graph);
    }

    /// Sets a kernel's node, as long as the graph is there that it is of. The kernel stays as programmatic
    /// as it was captured.
    pub(super) fn set_kernel(&mut self, exec: Handle, node: Handle, noted: Noted) -> Outcome<()> {
        let graph = self.made_from.get(&exec);
        let is_there = graph.is_some_and(|graph| self.known.contains_key(graph));
        let found = self.known.get_mut(&exec).filter(|_| is_there && !noted.grid.contains(&0));
        let found = found.and_then(|graph| {
            let is_it =
                |(known, before): &&mut (_, Noted)| *known == node && before.name == noted.name;
            graph.kernels.iter_mut().find(is_it)
        });
        let Some((_, kernel)) = found else {
            return failed("cuGraphExecKernelNodeSetParams_v2", 1);
        };
        *kernel = Noted { programmatic: kernel.programmatic, ..noted };
        self.set.push(kernel.clone());
        Ok(())
    }

    /// The kernels that a launch of an executable graph runs.
    pub(super) fn kernels(&self, exec: Handle) -> impl Iterator<Item = Noted> {
        self.of(exec).kernels.iter().map(|(_, noted)| noted.clone())
    }
}
