//! On which side of each split op a pure node runs: where the fewest bytes cross.
//!
//! Segment `k` lies between split op `k - 1` and split op `k`. For each split op alone, the set
//! of nodes before it is a closure under dependence, and the bytes that cross are those of the
//! values defined before and read after: a minimum cut. From one split op to the next the fixed
//! nodes before only grow and those after only shrink, so the smallest minimum cuts are nested,
//! and together they make the assignment with the fewest bytes over all split ops.

use super::classify::NodeRole;
use super::dependence::{Dependence, result_bytes};
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use piecewise_ir::graph::Graph;

/// The segment of every node in program order; that of a split op, and of what runs with it, is the
/// one before it. What a region that runs with a split op reads is not after that.
pub(super) fn program_order(dependence: &Dependence, roles: &[NodeRole]) -> Vec<usize> {
    let mut splits = 0;
    let mut segments = Vec::with_capacity(roles.len());
    for role in roles {
        segments.push(if *role == NodeRole::Prologue { 0 } else { splits });
        splits += usize::from(*role == NodeRole::Split);
    }
    for (at, role) in roles.iter().enumerate() {
        if let NodeRole::Absorbed(op) = *role {
            let (mut before, segment) = (vec![false; roles.len()], segments[op]);
            before[at] = true;
            dependence.close_backward(&mut before);
            let read = (0..=at).filter(|&read| before[read]);
            read.for_each(|read| segments[read] = segment.min(segments[read]));
        }
    }
    segments
}

/// The segment of every node such that the fewest bytes cross the split ops; among equals the
/// fewest nodes leave their place in program order. Only pure nodes move.
pub(super) fn cheapest(
    graph: &Graph,
    dependence: &Dependence,
    roles: &[NodeRole],
    program: &[usize],
) -> Vec<usize> {
    let splits: Vec<usize> = (0..roles.len()).filter(|&at| roles[at] == NodeRole::Split).collect();
    let mut segments = program.to_vec();
    let mut open: Vec<bool> = roles.iter().map(|role| *role == NodeRole::Pure).collect();
    for (at, segment) in segments.iter_mut().enumerate() {
        if open[at] {
            *segment = splits.len();
        }
    }
    for k in 0..splits.len() {
        let before = nodes_before(graph, dependence, roles, program, k);
        for at in 0..roles.len() {
            if open[at] && before[at] {
                segments[at] = k;
                open[at] = false;
            }
        }
    }
    segments
}

/// Bytes at the bounds of the values defined before a split op and read by it or after it, summed
/// over the split ops; saturating.
pub(super) fn boundary_bytes(
    graph: &Graph,
    dependence: &Dependence,
    roles: &[NodeRole],
    segments: &[usize],
) -> u64 {
    let last_segment = roles.iter().filter(|r| **r == NodeRole::Split).count();
    let mut sum = 0u64;
    for at in 0..dependence.len() {
        // What a split op makes comes into being after it, in the next segment.
        let ready = |at: usize| segments[at] + usize::from(roles[at].split_op(at).is_some());
        let first = ready(at);
        let reader = |&r: &usize| ready(r);
        let returned = dependence.is_returned(at).then_some(last_segment);
        let last = dependence.readers(at).iter().map(reader).chain(returned).max();
        let crossed = last.unwrap_or(first).saturating_sub(first) as u64;
        let bytes = result_bytes(graph, dependence.node(at), |_| true);
        sum = sum.saturating_add(bytes.saturating_mul(crossed));
    }
    sum
}

/// Which nodes run before split op `k`.
fn nodes_before(
    graph: &Graph,
    dependence: &Dependence,
    roles: &[NodeRole],
    program: &[usize],
    k: usize,
) -> Vec<bool> {
    let mut before: Vec<bool> = (0..roles.len())
        .map(|at| match roles[at] {
            NodeRole::Prologue => true,
            NodeRole::Split | NodeRole::Absorbed(_) => program[at] < k,
            NodeRole::Effect => program[at] <= k,
            NodeRole::Pure => false,
        })
        .collect();
    let mut after: Vec<bool> = (0..roles.len())
        .map(|at| match roles[at] {
            NodeRole::Split | NodeRole::Absorbed(_) => program[at] >= k,
            NodeRole::Effect => program[at] > k,
            NodeRole::Prologue | NodeRole::Pure => false,
        })
        .collect();
    // What the split op and what runs with it read comes before them, though they do not.
    for at in (0..roles.len()).filter(|&at| program[at] == k) {
        let Some(op) = roles[at].split_op(at) else { continue };
        let outside = |pred: &&usize| roles[**pred].split_op(**pred) != Some(op);
        dependence.preds(at).iter().filter(outside).for_each(|&pred| before[pred] = true);
    }
    dependence.close_backward(&mut before);
    dependence.close_forward(&mut after);
    if (0..roles.len()).any(|at| !before[at] && !after[at]) {
        let network = Network::of(graph, dependence, program, k, &before, &after);
        for at in network.source_side() {
            before[at] = true;
        }
    }
    before
}

#[derive(Clone, Copy, PartialEq)]
enum Vertex {
    Before,
    After,
    Node(usize),
    Crossing,
}

/// The flow network of one split op: capacities are bytes, scaled so that no number of moved
/// nodes outweighs a byte.
struct Network {
    flow: DiGraph<Vertex, u128>,
    source: NodeIndex,
    sink: NodeIndex,
}

impl Network {
    /// More than any sum of bytes: an edge that no minimum cut takes.
    const BINDING: u128 = 1 << 120;

    fn of(
        graph: &Graph,
        dependence: &Dependence,
        program: &[usize],
        k: usize,
        before: &[bool],
        after: &[bool],
    ) -> Self {
        let mut flow = DiGraph::new();
        let source = flow.add_node(Vertex::Before);
        let sink = flow.add_node(Vertex::After);
        let vertices: Vec<NodeIndex> = (0..dependence.len())
            .map(|at| match (before[at], after[at]) {
                (true, _) => source,
                (_, true) => sink,
                _ => flow.add_node(Vertex::Node(at)),
            })
            .collect();
        let scale = dependence.len() as u128 + 1;
        for at in 0..dependence.len() {
            let vertex = vertices[at];
            if vertex == sink {
                continue;
            }
            if vertex != source {
                if program[at] <= k {
                    flow.add_edge(source, vertex, 1);
                } else {
                    flow.add_edge(vertex, sink, 1);
                }
                for &pred in dependence.preds(at) {
                    if vertices[pred] != source {
                        flow.add_edge(vertex, vertices[pred], Self::BINDING);
                    }
                }
            }
            add_crossing(&mut flow, &vertices, dependence, at, sink, || {
                u128::from(result_bytes(graph, dependence.node(at), |_| true)) * scale
            });
        }
        Self { flow, source, sink }
    }

    /// The nodes on the source side of the smallest minimum cut.
    fn source_side(&self) -> Vec<usize> {
        let (_, flows) = dinics(&self.flow, self.source, self.sink);
        let mut reached = vec![false; self.flow.node_count()];
        reached[self.source.index()] = true;
        let mut stack = vec![self.source];
        while let Some(vertex) = stack.pop() {
            let onward = self
                .flow
                .edges(vertex)
                .filter(|e| flows[e.id().index()] < *e.weight())
                .map(|e| e.target());
            let backward = self
                .flow
                .edges_directed(vertex, petgraph::Incoming)
                .filter(|e| flows[e.id().index()] > 0)
                .map(|e| e.source());
            for next in onward.chain(backward) {
                if !std::mem::replace(&mut reached[next.index()], true) {
                    stack.push(next);
                }
            }
        }
        let side = self.flow.node_indices().filter(|v| reached[v.index()]);
        let node = |v| if let Vertex::Node(at) = self.flow[v] { Some(at) } else { None };
        side.filter_map(node).collect()
    }
}

/// Lets the results of the node at `at` cost their bytes once, however many read them after.
fn add_crossing(
    flow: &mut DiGraph<Vertex, u128>,
    vertices: &[NodeIndex],
    dependence: &Dependence,
    at: usize,
    sink: NodeIndex,
    bytes: impl Fn() -> u128,
) {
    let source_side = vertices[at];
    let mut readers: Vec<NodeIndex> =
        dependence.readers(at).iter().map(|&reader| vertices[reader]).collect();
    if dependence.is_returned(at) {
        readers.push(sink);
    }
    readers.sort_unstable();
    readers.dedup();
    if readers.contains(&sink) {
        flow.add_edge(source_side, sink, bytes());
        return;
    }
    readers.retain(|&reader| reader != source_side && flow[reader] != Vertex::Before);
    if readers.is_empty() {
        return;
    }
    let crossing = flow.add_node(Vertex::Crossing);
    flow.add_edge(source_side, crossing, bytes());
    for reader in readers {
        flow.add_edge(crossing, reader, Network::BINDING);
    }
}
