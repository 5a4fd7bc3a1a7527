//! Captured graphs: inspected as the driver holds them, then instantiated.

use super::context::warn_failed;
use super::driver::{GraphEdge, GraphNode, Handle, KernelLaunch, Outcome};
use super::stream::Stream;
use crate::device::CaptureRule;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A captured graph, not yet instantiated.
#[derive(Debug)]
pub(super) struct Graph {
    stream: Arc<Stream>,
    handle: Handle,
}

/// What the driver says is in a captured graph; child graphs are counted in.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct GraphSummary {
    /// The kernels by name, in the order of the driver's nodes.
    pub kernels: Vec<String>,
    /// Copies of memory, to or from the host or within the device.
    pub copies: usize,
    /// Nodes that set memory to one value.
    pub fills: usize,
    /// Nodes of every kind, child graphs not counted themselves.
    pub nodes: usize,
    /// Edges of the outermost graph.
    pub edges: usize,
    /// Edges whose consumer may start before its producer ends.
    pub programmatic_edges: usize,
    /// Nodes that allocate or free memory.
    pub memory_nodes: usize,
    /// Nodes that run a host function.
    pub host_nodes: usize,
}

/// How many programmatic edges lead from kernels of one name to kernels of another, or of the same: the names
/// of the producer and the consumer.
pub(super) type KernelEdges<'a> = BTreeMap<(&'a str, &'a str), usize>;

/// What is in a captured graph, with its edges.
#[derive(Debug)]
pub(super) struct Inspected {
    pub(super) summary: GraphSummary,
    nodes: Vec<GraphNode>,
    edges: Vec<GraphEdge>,
}

impl Inspected {
    /// The programmatic edges between kernels of the outermost graph.
    pub(super) fn kernel_edges(&self) -> KernelEdges<'_> {
        let name = |i: usize| match self.nodes.get(i) {
            Some(GraphNode::Kernel { name, .. }) => Some(name.as_str()),
            _ => None,
        };
        let mut found = KernelEdges::new();
        for edge in self.edges.iter().filter(|edge| edge.programmatic) {
            if let (Some(from), Some(to)) = (name(edge.from), name(edge.to)) {
                *found.entry((from, to)).or_default() += 1;
            }
        }
        found
    }
}

impl GraphSummary {
    pub(super) fn of(nodes: &[GraphNode], edges: &[GraphEdge]) -> Self {
        let mut summary = Self {
            edges: edges.len(),
            programmatic_edges: edges.iter().filter(|edge| edge.programmatic).count(),
            ..Self::default()
        };
        summary.count(nodes);
        summary
    }

    fn count(&mut self, nodes: &[GraphNode]) {
        for node in nodes {
            self.nodes += 1;
            match node {
                GraphNode::Kernel { name, .. } => self.kernels.push(name.clone()),
                GraphNode::MemoryCopy => self.copies += 1,
                GraphNode::MemorySet => self.fills += 1,
                GraphNode::Host => self.host_nodes += 1,
                GraphNode::Allocation | GraphNode::Free => self.memory_nodes += 1,
                GraphNode::Child(nodes) => {
                    self.nodes -= 1;
                    self.count(nodes);
                }
                GraphNode::Empty | GraphNode::Other(_) => {}
            }
        }
    }

    /// The rule that the graph breaks: memory nodes make a second replay fail, host nodes wait
    /// for the host, and a graph without kernels does nothing.
    pub(super) fn broken_rule(&self) -> Option<CaptureRule> {
        match self {
            Self { memory_nodes: 1.., .. } => Some(CaptureRule::NoAllocation),
            Self { host_nodes: 1.., .. } => Some(CaptureRule::NoHostNode),
            Self { kernels, .. } if kernels.is_empty() => Some(CaptureRule::NoEmpty),
            _ => None,
        }
    }
}

impl Graph {
    /// Owns a graph of the driver; `None` for the null graph.
    pub(super) fn own(stream: &Arc<Stream>, handle: Handle) -> Option<Self> {
        (handle != 0).then(|| Self { stream: stream.clone(), handle })
    }

    pub(super) fn inspect(&self) -> Outcome<Inspected> {
        let driver = &self.stream.context.driver;
        let nodes = driver.graph_nodes(self.handle)?;
        let edges = driver.graph_edges(self.handle)?;
        Ok(Inspected { summary: GraphSummary::of(&nodes, &edges), nodes, edges })
    }

    /// As the driver draws it, for graphviz.
    pub(super) fn write_dot(&self, path: &Path) -> Outcome<()> {
        self.stream.context.driver.write_dot(self.handle, path)
    }

    /// Makes it executable and uploads it, so that the first launch costs no more than others.
    pub(super) fn instantiate(&self) -> Outcome<GraphExec> {
        let driver = &self.stream.context.driver;
        let handle = driver.instantiate(self.handle)?;
        let exec = GraphExec { stream: self.stream.clone(), handle };
        driver.upload(handle, self.stream.handle)?;
        Ok(exec)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.stream.context.give_back(|driver| driver.destroy_graph(self.handle));
    }
}

/// An executable graph. Its handle is a number, so that it may move between threads: the driver
/// only asks that no two use one graph at once, and the device that launches it is used by one.
#[derive(Debug)]
pub(super) struct GraphExec {
    stream: Arc<Stream>,
    pub(super) handle: Handle,
}

impl GraphExec {
    pub(super) fn launch(&self) -> Outcome<()> {
        self.stream.context.driver.launch_graph(self.handle, self.stream.handle)
    }

    /// Sets a kernel of the graph that it was made from, which is still there, in the launches to come.
    pub(super) fn set_kernel(&self, node: Handle, launch: &KernelLaunch<'_>) -> Outcome<()> {
        self.stream.context.driver.set_kernel(self.handle, node, launch)
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        self.stream.context.give_back(|driver| {
            // What it points to is returned next, and a replay may still be running.
            warn_failed(self.stream.synchronize());
            driver.destroy_exec(self.handle)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str) -> GraphNode {
        GraphNode::Kernel { name: name.to_owned(), grid: [1; 3], block: [32, 1, 1] }
    }

    #[test]
    fn child_graphs_count_and_rules_are_found_inside_them() {
        let edge = |programmatic| GraphEdge { from: 0, to: 1, programmatic };
        let nodes = [kernel("a"), GraphNode::Child(vec![kernel("b"), GraphNode::MemorySet])];
        let summary = GraphSummary::of(&nodes, &[edge(true), edge(false)]);
        assert_eq!(summary.kernels, ["a", "b"]);
        assert_eq!((summary.nodes, summary.edges, summary.programmatic_edges), (3, 2, 1));
        assert_eq!(summary.broken_rule(), None);

        let rule = |node| GraphSummary::of(&[kernel("a"), node], &[]).broken_rule();
        assert_eq!(rule(GraphNode::Free), Some(CaptureRule::NoAllocation));
        let inner = GraphNode::Child(vec![GraphNode::Allocation]);
        assert_eq!(rule(inner), Some(CaptureRule::NoAllocation));
        assert_eq!(rule(GraphNode::Host), Some(CaptureRule::NoHostNode));
        let none = GraphSummary::of(&[GraphNode::MemoryCopy], &[]);
        assert_eq!(none.broken_rule(), Some(CaptureRule::NoEmpty));
    }
}
