//! From segments to members: pieces of one symbol each, with split ops between them.

use super::classify::{NodeRole, iteration_symbol};
use super::dependence::Dependence;
use piecewise_ir::entity::Symbol;
use piecewise_ir::graph::Graph;

/// A member of the step, its nodes by position in program order.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Group {
    /// Nodes that are captured together.
    Piece {
        /// The symbol it iterates over.
        over: Option<Symbol>,
        /// Positions in program order, ascending.
        nodes: Vec<usize>,
    },
    /// A split op, among the regions that run with it.
    Split(Vec<usize>),
}

/// The members of a step but for the prologue.
#[derive(Debug)]
pub(super) struct Arrangement {
    /// In the order in which they run.
    pub(super) members: Vec<Group>,
    /// Nodes that joined a neighbour because alone they were a piece without a kernel.
    pub(super) joined: Vec<usize>,
}

impl Arrangement {
    pub(super) fn piece_count(&self) -> usize {
        self.members.iter().filter(|m| matches!(m, Group::Piece { .. })).count()
    }
}

/// Groups the nodes of every segment into pieces and puts the split ops between them.
pub(super) fn arrange(
    graph: &Graph,
    dependence: &Dependence,
    roles: &[NodeRole],
    segments: &[usize],
) -> Arrangement {
    let symbols: Vec<Option<Symbol>> =
        (0..dependence.len()).map(|at| iteration_symbol(graph, dependence.node(at))).collect();
    let splits: Vec<usize> = (0..roles.len()).filter(|&at| roles[at] == NodeRole::Split).collect();
    let mut contents = vec![Vec::new(); splits.len() + 1];
    for (at, role) in roles.iter().enumerate() {
        if matches!(role, NodeRole::Pure | NodeRole::Effect) {
            contents[segments[at]].push(at);
        }
    }
    let mut members = Vec::new();
    for (k, nodes) in contents.iter().enumerate() {
        members.extend(by_symbol(dependence, &symbols, nodes));
        members.extend(splits.get(k).map(|&op| {
            let with = (0..roles.len()).filter(|&at| roles[at].split_op(at) == Some(op));
            Group::Split(with.collect())
        }));
    }
    let kernel: Vec<bool> =
        (0..dependence.len()).map(|at| graph.node(dependence.node(at)).op.computes()).collect();
    let joined = join_kernel_less(dependence, &symbols, &kernel, &mut members);
    merge_adjacent(&mut members);
    Arrangement { members, joined }
}

/// The pieces of one segment: as few runs of one symbol as its dependences allow.
fn by_symbol(dependence: &Dependence, symbols: &[Option<Symbol>], nodes: &[usize]) -> Vec<Group> {
    let mut starts: Vec<Option<Symbol>> = Vec::new();
    for &at in nodes {
        if symbols[at].is_some() && !starts.contains(&symbols[at]) {
            starts.push(symbols[at]);
        }
    }
    if starts.is_empty() && !nodes.is_empty() {
        starts.push(None);
    }
    let candidates = starts.into_iter().map(|start| runs(dependence, symbols, nodes, start));
    let mut groups = candidates.min_by_key(Vec::len).unwrap_or_default();
    sink_static(dependence, symbols, nodes, &mut groups);
    groups.into_iter().map(|(over, nodes)| Group::Piece { over, nodes }).collect()
}

type Run = (Option<Symbol>, Vec<usize>);

/// Greedy runs: all that is ready of one symbol, then of the next.
fn runs(
    dependence: &Dependence,
    symbols: &[Option<Symbol>],
    nodes: &[usize],
    start: Option<Symbol>,
) -> Vec<Run> {
    let mut waiting: Vec<bool> = vec![false; dependence.len()];
    nodes.iter().for_each(|&at| waiting[at] = true);
    let mut left = nodes.to_vec();
    let mut runs: Vec<Run> = Vec::new();
    let mut over = start;
    while !left.is_empty() {
        let mut run = Vec::new();
        left.retain(|&at| {
            let fits = symbols[at].is_none() || symbols[at] == over;
            let ready = fits && dependence.preds(at).iter().all(|&pred| !waiting[pred]);
            if ready {
                waiting[at] = false;
                run.push(at);
            }
            !ready
        });
        if !run.is_empty() {
            runs.push((over, run));
        }
        // The first node left has no waiting predecessor, so the next run is not empty.
        over = left.first().and_then(|&at| symbols[at]);
    }
    runs
}

/// Moves nodes of static shape into the run of their first reader.
fn sink_static(
    dependence: &Dependence,
    symbols: &[Option<Symbol>],
    nodes: &[usize],
    runs: &mut [Run],
) {
    let mut run_of = vec![None; dependence.len()];
    for (r, (_, members)) in runs.iter().enumerate() {
        members.iter().for_each(|&at| run_of[at] = Some(r));
    }
    for &at in nodes.iter().rev() {
        if symbols[at].is_none()
            && let Some(first) = dependence.succs(at).iter().filter_map(|&s| run_of[s]).min()
        {
            run_of[at] = Some(first);
        }
    }
    for (r, (_, members)) in runs.iter_mut().enumerate() {
        *members = nodes.iter().copied().filter(|&at| run_of[at] == Some(r)).collect();
    }
}

/// Takes pieces without a kernel apart and gives their nodes to the next piece, or to the one
/// before, where dependences allow it for all of them.
fn join_kernel_less(
    dependence: &Dependence,
    symbols: &[Option<Symbol>],
    kernel: &[bool],
    members: &mut Vec<Group>,
) -> Vec<usize> {
    let mut joined = Vec::new();
    for m in 0..members.len() {
        let Group::Piece { nodes, .. } = &members[m] else { continue };
        if nodes.iter().any(|&at| kernel[at]) {
            continue;
        }
        let nodes = nodes.clone();
        let is_piece = |g: &Group| matches!(g, Group::Piece { nodes, .. } if !nodes.is_empty());
        let next = (m + 1..members.len()).find(|&i| is_piece(&members[i]));
        let previous = (0..m).rev().find(|&i| is_piece(&members[i]));
        let fits = |target: usize, at: usize| match &members[target] {
            Group::Piece { over, .. } => symbols[at].is_none() || symbols[at] == *over,
            Group::Split(_) => false,
        };
        let between = |from: usize, to: usize| {
            let mut passed = vec![false; dependence.len()];
            for group in &members[from..to] {
                let (Group::Split(nodes) | Group::Piece { nodes, .. }) = group;
                nodes.iter().for_each(|&at| passed[at] = true);
            }
            passed
        };
        let mut goes: Vec<Option<usize>> = vec![None; dependence.len()];
        if let Some(next) = next {
            let passed = between(m + 1, next);
            for &at in nodes.iter().rev() {
                let free = dependence
                    .succs(at)
                    .iter()
                    .all(|&s| !passed[s] && (!nodes.contains(&s) || goes[s] == Some(next)));
                goes[at] = (free && fits(next, at)).then_some(next);
            }
        }
        if let Some(previous) = previous {
            let passed = between(previous + 1, m);
            for &at in nodes.iter().filter(|&&at| goes[at].is_none()).collect::<Vec<_>>() {
                let free = dependence
                    .preds(at)
                    .iter()
                    .all(|&p| !passed[p] && (!nodes.contains(&p) || goes[p] == Some(previous)));
                goes[at] = (free && fits(previous, at)).then_some(previous);
            }
        }
        if nodes.iter().any(|&at| goes[at].is_none()) {
            continue;
        }
        for &at in &nodes {
            if let Some(Group::Piece { nodes, .. }) = goes[at].and_then(|t| members.get_mut(t)) {
                nodes.push(at);
                nodes.sort_unstable();
            }
        }
        if let Group::Piece { nodes, .. } = &mut members[m] {
            nodes.clear();
        }
        joined.extend(nodes);
    }
    members.retain(|g| !matches!(g, Group::Piece { nodes, .. } if nodes.is_empty()));
    joined
}

/// Makes neighbours over one symbol one piece.
fn merge_adjacent(members: &mut Vec<Group>) {
    let mut merged: Vec<Group> = Vec::with_capacity(members.len());
    for group in members.drain(..) {
        match (merged.last_mut(), group) {
            (Some(Group::Piece { over, nodes }), Group::Piece { over: next_over, nodes: next })
                if *over == next_over =>
            {
                nodes.extend(next);
                nodes.sort_unstable();
            }
            (_, group) => merged.push(group),
        }
    }
    *members = merged;
}
