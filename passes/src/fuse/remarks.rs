//! Why each value that stays in memory was not fused away.

use super::groups::{Groups, Obstacle};
use super::recompute::Recompute;
use super::rows::row_symbol;
use crate::analysis::{Users, describe};
use crate::manager::PassReport;
use piecewise_ir::graph::Graph;

/// Remarks on nodes that joined no region, and on values that regions hand to others.
pub(super) fn explain(
    graph: &Graph,
    groups: &Groups,
    recompute: &Recompute,
    report: &mut PassReport,
) {
    let users = Users::of(graph);
    for node in graph.nodes() {
        let group = groups.group(node);
        let results = &graph.node(node).results;
        if groups.over(group).is_none() {
            let recomputed = results.iter().any(|&v| recompute.form(v).is_some());
            if let (false, Err(why)) = (recomputed, row_symbol(graph, node)) {
                report.remark("joined no region", describe(graph, node), why);
            }
            continue;
        }
        if groups.is_view(graph, recompute, group) {
            let why = "it only renames the shape of a value in memory";
            report.remark("joined no region", describe(graph, node), why);
            continue;
        }
        for &value in results {
            if users.is_returned(value) {
                report.remark("kept in memory", describe(graph, node), "the graph returns it");
            }
            for &(user, _) in users.nodes(value) {
                let other = groups.group(user);
                let recomputed =
                    graph.node(user).results.iter().any(|&v| recompute.form(v).is_some());
                if other == group || recomputed {
                    continue;
                }
                let reader = describe(graph, user);
                let why = match groups.obstacle(group, other) {
                    None => format!("{reader} reads it as a whole"),
                    Some(Obstacle::Symbol) => match row_symbol(graph, user) {
                        Err(why) => format!("{reader} reads it: {why}"),
                        Ok(_) => format!("{reader} reads it, over the rows of another symbol"),
                    },
                    Some(Obstacle::Between(between)) => {
                        let between = describe(graph, between);
                        format!("{reader} reads it, and {between} must run in between")
                    }
                    Some(Obstacle::State(state)) => {
                        format!("{reader} reads it, and both touch state {state}")
                    }
                };
                report.remark("kept in memory", describe(graph, node), why);
            }
        }
    }
}
