//! Why nodes were fused, and why each value that stays in memory was not fused away.

use super::groups::{Groups, Obstacle};
use super::recompute::Recompute;
use super::rows::row_symbol;
use crate::analysis::{Names, Users};
use crate::manager::PassReport;
use piecewise_ir::graph::Graph;
use std::collections::BTreeMap;

/// Remarks on what each region fuses, on nodes that joined no region, and on values that regions hand to others.
pub(super) fn explain(
    graph: &Graph,
    groups: &Groups,
    recompute: &Recompute,
    report: &mut PassReport,
) {
    let users = Users::of(graph);
    let names = Names::of(graph);
    explain_regions(graph, groups, recompute, &names, report);
    for node in graph.nodes() {
        let group = groups.group(node);
        let results = &graph.node(node).results;
        if groups.over(group).is_none() {
            let recomputed = results.iter().any(|&v| recompute.form(v).is_some());
            if let (false, Err(why)) = (recomputed, row_symbol(graph, node)) {
                report.remark("joined no region", names.node(graph, node), why);
            }
            continue;
        }
        if groups.is_view(graph, recompute, group) {
            let why = "it only renames the shape of a value in memory";
            report.remark("joined no region", names.node(graph, node), why);
            continue;
        }
        for &value in results {
            if users.is_returned(value) {
                report.remark("kept in memory", names.node(graph, node), "the graph returns it");
            }
            for &(user, _) in users.nodes(value) {
                let other = groups.group(user);
                let recomputed =
                    graph.node(user).results.iter().any(|&v| recompute.form(v).is_some());
                if other == group || recomputed {
                    continue;
                }
                let reader = names.node(graph, user);
                let why = match groups.obstacle(group, other) {
                    None => format!("{reader} reads it as a whole"),
                    Some(Obstacle::Symbol) => match row_symbol(graph, user) {
                        Err(why) => format!("{reader} reads it: {why}"),
                        Ok(_) => format!("{reader} reads it, over the rows of another symbol"),
                    },
                    Some(Obstacle::Between(between)) => {
                        let between = names.node(graph, between);
                        format!("{reader} reads it, and {between} must run in between")
                    }
                    Some(Obstacle::State(state)) => {
                        format!("{reader} reads it, and both touch state {}", names.value(state))
                    }
                };
                report.remark("kept in memory", names.node(graph, node), why);
            }
        }
    }
}

/// What each region of several nodes is made of, at its last node.
fn explain_regions(
    graph: &Graph,
    groups: &Groups,
    recompute: &Recompute,
    names: &Names,
    report: &mut PassReport,
) {
    for group in groups.ids() {
        let Some(over) = groups.over(group) else { continue };
        if groups.is_view(graph, recompute, group) {
            continue;
        }
        let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
        let mut last = None;
        for node in groups.members(group) {
            *ops.entry(graph.node(node).op.mnemonic()).or_default() += 1;
            last = Some(node);
        }
        let count: usize = ops.values().sum();
        let Some(last) = last.filter(|_| count > 1) else { continue };
        let ops = ops.iter().map(|(op, n)| match n {
            1 => (*op).to_owned(),
            n => format!("{n} {op}"),
        });
        let why = format!(
            "each computes a row of {} from rows at the same place, and no other kernel must run \
             in between: {}",
            graph.symbols()[over].name,
            ops.collect::<Vec<_>>().join(", ")
        );
        report.remark(format!("fused {count} nodes"), names.node(graph, last), why);
    }
}
