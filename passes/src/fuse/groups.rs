//! Growth of groups: greedy, convex in data and in the order of effects.
//!
//! Two groups may become one if they work on rows of one symbol, if nothing between them would
//! be enclosed (a path from one to the other through a third), and if they share no state that
//! either of them mutates (the rows of a region run in any order).

use super::decisions::Decisions;
use super::recompute::{Form, Recompute};
use super::rows::operand_mode;
use super::spans::Spans;
use crate::analysis::{Dependence, dependences, states_touched};
use indexmap::IndexSet;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use piecewise_ir::region::ParamMode;
use std::collections::BTreeSet;
use std::ops::Range;

/// Why two groups can't be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// They iterate over different symbols, or one is no group.
    Symbol,
    /// This node must run after one and before the other.
    Between(Node),
    /// One mutates this state, which the other touches.
    State(Value),
}

/// One group, or a node on its own.
struct Group {
    over: Option<Symbol>,
    members: Vec<usize>,
    writes: Vec<Value>,
    reads: Vec<Value>,
}

/// The nodes of a graph, partitioned.
pub(super) struct Groups {
    deps: DiGraph<Node, Dependence>,
    position: Vec<usize>,
    group_of: Vec<usize>,
    groups: Vec<Group>,
    spans: Spans,
}

impl Groups {
    /// Puts each node into one group, as large as rules and dependences let it become.
    pub(super) fn grow(
        graph: &Graph,
        recompute: &Recompute,
        decisions: &mut Decisions<'_>,
    ) -> Self {
        let mut deps = dependences(graph);
        let mut position = vec![usize::MAX; graph.node_count()];
        let mut groups = Vec::with_capacity(deps.node_count());
        for (i, node) in graph.nodes().enumerate() {
            position[node.index()] = i;
            let over = recompute.groupable(graph, node);
            let (writes, reads) = states_touched(graph, node);
            groups.push(Group { over, members: vec![i], writes, reads });
            if over.is_none() && is_recomputed_rows(graph, recompute, node) {
                bypass(&mut deps, NodeIndex::new(i));
            }
        }
        let group_of = (0..groups.len()).collect();
        let spans = Spans::of_single_nodes(groups.len());
        let mut this = Self { deps, position, group_of, groups, spans };
        this.grow_along_values(graph, recompute, decisions);
        this.grow_across_shared_rows(graph, recompute, decisions);
        this
    }

    /// Joins each node with the producers of its row operands.
    fn grow_along_values(
        &mut self,
        graph: &Graph,
        recompute: &Recompute,
        decisions: &mut Decisions<'_>,
    ) {
        for consumer in graph.nodes() {
            for producer in row_producers(graph, recompute, self, consumer) {
                let (a, b) = (self.group(producer), self.group(consumer));
                let pair = [producer, consumer];
                if a != b
                    && self.obstacle(a, b).is_none()
                    && decisions.allow_pair("fused with what reads it", graph, pair)
                {
                    self.merge(a, b);
                }
            }
        }
    }

    /// The group at a position in program order.
    pub(super) fn group_at(&self, position: usize) -> usize {
        self.group_of[position]
    }

    /// The node at a position in program order.
    pub(super) fn node_at(&self, position: usize) -> Node {
        self.deps[NodeIndex::new(position)]
    }

    /// The groups that must run right after `group`; one may come several times.
    pub(super) fn successors(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let members = self.groups[group].members.iter().copied();
        let next = members.flat_map(|m| self.deps.neighbors(NodeIndex::new(m)));
        next.map(|next| self.group_of[next.index()]).filter(move |&next| next != group)
    }

    /// The fewest positions around those of `groups` that no group reaches out of: what must run
    /// between two of them lies inside.
    pub(super) fn window(&self, groups: impl Iterator<Item = usize>) -> Range<usize> {
        let (mut start, mut end) = (usize::MAX, 0);
        for group in groups {
            let members = &self.groups[group].members;
            start = start.min(members.first().copied().unwrap_or(usize::MAX));
            end = end.max(members.last().map_or(0, |last| last + 1));
        }
        self.spans.floor(start)..self.spans.ceil(end)
    }

    pub(super) fn merge(&mut self, a: usize, b: usize) {
        let (into, from) = (a.min(b), a.max(b));
        self.spans.merge(&self.groups[a].members, &self.groups[b].members);
        let taken = std::mem::replace(
            &mut self.groups[from],
            Group { over: None, members: vec![], writes: vec![], reads: vec![] },
        );
        for &member in &taken.members {
            self.group_of[member] = into;
        }
        let group = &mut self.groups[into];
        group.members.extend(taken.members);
        group.members.sort_unstable();
        group.writes.extend(taken.writes);
        group.reads.extend(taken.reads);
    }

    /// Why `a` and `b` can't be one group, if they can't.
    pub(super) fn obstacle(&self, a: usize, b: usize) -> Option<Obstacle> {
        let (ga, gb) = (&self.groups[a], &self.groups[b]);
        if ga.over.is_none() || ga.over != gb.over {
            return Some(Obstacle::Symbol);
        }
        let touched = |writer: &Group, other: &Group| {
            let hit =
                writer.writes.iter().find(|&s| other.writes.contains(s) || other.reads.contains(s));
            hit.copied()
        };
        if let Some(state) = touched(ga, gb).or_else(|| touched(gb, ga)) {
            return Some(Obstacle::State(state));
        }
        self.between(a, b).or_else(|| self.between(b, a)).map(Obstacle::Between)
    }

    /// A node of a third group on a path from `from` to `to`.
    fn between(&self, from: usize, to: usize) -> Option<Node> {
        // No path leads from a group to what lies before a position that no group spans.
        let floor = self.window(std::iter::once(from)).start;
        let mut seen = BTreeSet::from([to]);
        let mut pending = Vec::new();
        let visit = |group: usize, pending: &mut Vec<usize>, seen: &mut BTreeSet<usize>| {
            let mut reached = None;
            for &member in &self.groups[group].members {
                let at = NodeIndex::new(member);
                for before in self.deps.neighbors_directed(at, Direction::Incoming) {
                    let next = self.group_of[before.index()];
                    if next == from && group != to {
                        reached = Some(self.deps[at]);
                    } else if next != from && before.index() >= floor && seen.insert(next) {
                        pending.push(next);
                    }
                }
            }
            reached
        };
        visit(to, &mut pending, &mut seen);
        while let Some(group) = pending.pop() {
            if let Some(node) = visit(group, &mut pending, &mut seen) {
                return Some(node);
            }
        }
        None
    }

    /// The groups that are not empty, in the order of their first members.
    pub(super) fn ids(&self) -> Vec<usize> {
        (0..self.groups.len()).filter(|&g| self.groups[g].over.is_some()).collect()
    }

    pub(super) fn group(&self, node: Node) -> usize {
        self.group_of[self.position[node.index()]]
    }

    /// The symbol of a group; `None` for a node on its own that has no row form.
    pub(super) fn over(&self, group: usize) -> Option<Symbol> {
        self.groups[group].over
    }

    /// The nodes of a group in program order.
    pub(super) fn members(&self, group: usize) -> impl Iterator<Item = Node> + '_ {
        self.groups[group].members.iter().map(|&i| self.node_at(i))
    }

    /// Whether the group only renames the shape of values in memory, which takes no kernel.
    pub(super) fn is_view(&self, graph: &Graph, recompute: &Recompute, group: usize) -> bool {
        self.members(group).all(|node| {
            let data = graph.node(node);
            matches!(data.op, Op::Reshape) && recompute.form(data.operands[0]).is_none()
        })
    }

    /// The values outside the group whose rows it reads, recomputed values seen through.
    pub(super) fn row_reads(
        &self,
        graph: &Graph,
        recompute: &Recompute,
        group: usize,
    ) -> IndexSet<Value> {
        let Some(over) = self.over(group) else { return IndexSet::new() };
        let mut reads = IndexSet::new();
        let mut pending: Vec<Node> = self.members(group).collect();
        let mut seen = BTreeSet::new();
        while let Some(node) = pending.pop() {
            for (i, &value) in graph.node(node).operands.iter().enumerate() {
                if operand_mode(graph, node, i, over) != Some(ParamMode::Row) {
                    continue;
                }
                match (graph.defining_node(value), recompute.form(value)) {
                    (Some(def), Some(Form::Row)) => {
                        if seen.insert(def) {
                            pending.push(def);
                        }
                    }
                    (Some(def), _) if self.group(def) == group => {}
                    _ => {
                        reads.insert(value);
                    }
                }
            }
        }
        reads
    }

    /// Groups and nodes on their own in an order that keeps every dependence: as late as their
    /// last member was. Nodes that every reader recomputes are left out.
    pub(super) fn order(&self, graph: &Graph, recompute: &Recompute) -> Vec<usize> {
        let last = |group: usize| self.groups[group].members.last().copied().unwrap_or(0);
        let mut waits = vec![0usize; self.groups.len()];
        let mut successors: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.groups.len()];
        for edge in self.deps.raw_edges() {
            let [from, to] =
                [edge.source(), edge.target()].map(|vertex| self.group_of[vertex.index()]);
            if from != to && successors[from].insert(to) {
                waits[to] += 1;
            }
        }
        let mut ready: BTreeSet<(usize, usize)> = (0..self.groups.len())
            .filter(|&g| waits[g] == 0 && !self.groups[g].members.is_empty())
            .map(|g| (last(g), g))
            .collect();
        let mut order = Vec::with_capacity(self.groups.len());
        while let Some((_, group)) = ready.pop_first() {
            for &next in &successors[group] {
                waits[next] -= 1;
                if waits[next] == 0 {
                    ready.insert((last(next), next));
                }
            }
            let recomputed = self.over(group).is_none()
                && self.members(group).all(|n| is_recomputed_rows(graph, recompute, n));
            if !recomputed {
                order.push(group);
            }
        }
        order
    }
}

/// The nodes that produce rows that `consumer` reads, as rows of the group that it may join.
fn row_producers(
    graph: &Graph,
    recompute: &Recompute,
    groups: &Groups,
    consumer: Node,
) -> Vec<Node> {
    let Some(over) = groups.over(groups.group(consumer)) else { return Vec::new() };
    let data = graph.node(consumer);
    let rows = data
        .operands
        .iter()
        .enumerate()
        .filter(|&(i, _)| operand_mode(graph, consumer, i, over) == Some(ParamMode::Row));
    let read = rows.filter(|&(_, &value)| recompute.form(value).is_none());
    read.filter_map(|(_, &value)| graph.defining_node(value)).collect()
}

fn is_recomputed_rows(graph: &Graph, recompute: &Recompute, node: Node) -> bool {
    graph.node(node).results.iter().any(|&v| recompute.form(v) == Some(Form::Row))
}

/// Lets everything that waits for `vertex` wait for what `vertex` waits for instead.
fn bypass(deps: &mut DiGraph<Node, Dependence>, vertex: NodeIndex) {
    let before: Vec<_> = deps.neighbors_directed(vertex, Direction::Incoming).collect();
    let mut after: Vec<_> = deps.neighbors_directed(vertex, Direction::Outgoing).collect();
    after.reverse();
    for &to in &after {
        for &from in before.iter().rev() {
            deps.update_edge(from, to, Dependence::Data);
        }
    }
    for direction in [Direction::Incoming, Direction::Outgoing] {
        while let Some(edge) = deps.first_edge(vertex, direction) {
            deps.remove_edge(edge);
        }
    }
}
