//! Budgets where every size of a list costs the same: then a budget only limits how many sizes each
//! list has, and the best split is found by trying all.

use crate::axis::Axis;
use crate::budgeted::{Budgeted, BudgetedPlan, Resources, UNLIMITED};
use crate::dynamic_program::{INFEASIBLE, Keep, Potentials};

/// The cheapest plan, if the budgets can be counted.
pub(crate) fn solve(problem: &Budgeted<'_>) -> Option<BudgetedPlan> {
    let (first, rest) = problem.axes.split_first()?;
    let each: Vec<Resources> = problem
        .axes
        .iter()
        .map(|axis| of_every_size(axis, problem.budgets))
        .collect::<Option<_>>()?;
    let no_rest = vec![0; problem.max_graphs + 1];
    let tables: Vec<Potentials> = problem
        .axes
        .iter()
        .zip(problem.charges)
        .map(|(axis, charges)| Potentials::solve(axis, charges, &no_rest, Keep::First))
        .collect();
    let mut best: Option<(u128, Vec<usize>)> = None;
    for sizes in 0..=problem.max_graphs / first.graphs_per_size {
        let graphs = sizes * first.graphs_per_size;
        let mut splits = vec![graphs];
        let mut cost = tables[0].at(graphs, 0);
        let Some(mut left) = after(problem.budgets, each[0], sizes) else { break };
        let mut graphs_left = problem.max_graphs - graphs;
        for (index, axis) in rest.iter().enumerate() {
            let amounts = each[index + 1];
            let sizes = (graphs_left / axis.graphs_per_size).min(most_sizes(left, amounts));
            let graphs = sizes * axis.graphs_per_size;
            let next = tables[index + 1].at(graphs, 0);
            cost = if next == INFEASIBLE { INFEASIBLE } else { cost.saturating_add(next) };
            splits.push(graphs);
            graphs_left -= graphs;
            left = after(left, amounts, sizes)?;
        }
        if cost != INFEASIBLE && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, splits));
        }
    }
    let (cost, splits) = best?;
    let nodes = tables.iter().zip(splits).map(|(table, graphs)| table.walk(graphs).0).collect();
    Some(BudgetedPlan { nodes, cost, at_least: cost })
}

/// What each size costs of the limited resources, if that is the same for all.
fn of_every_size(axis: &Axis, budgets: Resources) -> Option<Resources> {
    let mut each = [0; 2];
    for (each, (amounts, budget)) in each.iter_mut().zip(axis.resources.iter().zip(budgets)) {
        if budget == UNLIMITED {
            continue;
        }
        *each = *amounts.first()?;
        if amounts.iter().any(|amount| amount != each) {
            return None;
        }
    }
    Some(each)
}

fn after(budgets: Resources, each: Resources, sizes: usize) -> Option<Resources> {
    let left = |resource: usize| {
        each[resource]
            .checked_mul(sizes as u64)
            .and_then(|used| budgets[resource].checked_sub(used))
    };
    Some([left(0)?, left(1)?])
}

fn most_sizes(budgets: Resources, each: Resources) -> usize {
    let most = |resource: usize| budgets[resource].checked_div(each[resource]).unwrap_or(u64::MAX);
    usize::try_from(most(0).min(most(1))).unwrap_or(usize::MAX)
}
