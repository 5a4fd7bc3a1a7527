//! Regions that go with the split op after them.

use super::classify::iteration_symbol;
use super::dependence::Dependence;
use super::members::Group;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use std::collections::BTreeMap;

/// Takes out of each piece the region that goes with the split op right after it, and names it by
/// the op: one whose results the op reads, and nothing else; of the ops called one of `names`.
pub(super) fn take_regions(
    graph: &Graph,
    dependence: &Dependence,
    members: &mut Vec<Group>,
    names: &[String],
) -> BTreeMap<usize, usize> {
    let mut taken = BTreeMap::new();
    for m in 1..members.len() {
        let (before, after) = members.split_at_mut(m);
        let (Some(Group::Piece { nodes, .. }), [Group::Split(op), ..]) = (before.last_mut(), after)
        else {
            continue;
        };
        let feeds_it_alone = |&at: &usize| {
            let node = graph.node(dependence.node(at));
            matches!(node.op, Op::Region(_))
                && dependence.readers(at) == [*op]
                && !dependence.is_returned(at)
                && node
                    .results
                    .iter()
                    .all(|result| graph.node(dependence.node(*op)).operands.contains(result))
                && !dependence.succs(at).iter().any(|next| nodes.contains(next))
                && iteration_symbol(graph, dependence.node(at))
                    == iteration_symbol(graph, dependence.node(*op))
        };
        let Op::Custom(call) = &graph.node(dependence.node(*op)).op else { continue };
        if !names.contains(&call.name) {
            continue;
        }
        if let Some(region) = nodes.iter().copied().rev().find(|at| feeds_it_alone(at)) {
            nodes.retain(|&at| at != region);
            taken.insert(*op, region);
        }
    }
    members.retain(|group| !matches!(group, Group::Piece { nodes, .. } if nodes.is_empty()));
    taken
}
