//! The cheapest list of at most `r` graphs, for every `r` at once.
//!
//! `best[r][j]` is the cost of serving all steps above node `j` with at most `r` more graphs. The
//! interval costs satisfy the quadrangle inequality (a larger size never serves a step cheaper),
//! so the best next size never falls as `j` grows, and each of the K layers is filled by
//! divide and conquer in O(N log N) (Yao 1980; the divide-and-conquer form after Galil & Park
//! 1992).

use crate::axis::Axis;

/// No list exists.
pub(crate) const INFEASIBLE: u128 = u128::MAX;

const END: u32 = 0;

/// The table of one axis.
#[derive(Debug)]
pub(crate) struct Potentials {
    /// Costs from each node, for each number of graphs; only the first node's where the table was
    /// asked to forget.
    pub(crate) best: Vec<Vec<u128>>,
    next: Vec<Vec<u32>>,
    graphs_per_size: usize,
    /// Interval costs that were computed.
    evaluations: u64,
}

/// How much of a table is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Costs from every node to the end of the axis.
    All,
    /// Costs from the first node.
    First,
}

impl Potentials {
    /// Fills the table for `0..after.len()` graphs. `charges` is what each candidate costs by
    /// itself; `after[r]` is what the rest of the plan costs with `r` graphs left.
    pub(crate) fn solve(axis: &Axis, charges: &[u128], after: &[u128], keep: Keep) -> Self {
        let nodes = axis.len() + 1;
        let mut table = Self {
            best: Vec::new(),
            next: Vec::new(),
            graphs_per_size: axis.graphs_per_size,
            evaluations: 0,
        };
        for (graphs, rest) in after.iter().enumerate() {
            let mut best = vec![INFEASIBLE; nodes];
            let mut next = vec![END; nodes];
            for (node, best) in best.iter_mut().enumerate() {
                if let Some(end) = axis.ending_at(node).filter(|_| *rest != INFEASIBLE) {
                    *best = end + rest;
                }
            }
            if let Some(fewer) = graphs.checked_sub(axis.graphs_per_size) {
                let mut layer = LayerFill {
                    axis,
                    charges,
                    fewer: &table.best[fewer],
                    best,
                    next,
                    evaluations: 0,
                };
                layer.fill(0, nodes - 1, 1, nodes - 1);
                (best, next) = (layer.best, layer.next);
                table.evaluations += layer.evaluations;
                if keep == Keep::First {
                    table.best[fewer] = vec![table.best[fewer][0]];
                }
            }
            table.best.push(best);
            table.next.push(next);
        }
        table
    }

    /// What the steps above `node` cost with `graphs` left.
    pub(crate) fn at(&self, graphs: usize, node: usize) -> u128 {
        self.best[graphs][node]
    }

    /// The nodes of the cheapest list with at most `graphs` graphs, and the graphs left over.
    pub(crate) fn walk(&self, mut graphs: usize) -> (Vec<usize>, usize) {
        let mut nodes = Vec::new();
        let mut node = 0;
        loop {
            match self.next[graphs][node] {
                END => return (nodes, graphs),
                next => {
                    node = next as usize;
                    nodes.push(node);
                    graphs -= self.graphs_per_size;
                }
            }
        }
    }
}

/// The tables of all axes, each ending in what the next ones cost, and what the whole costs with
/// each number of graphs.
pub(crate) fn chain(
    axes: &[Axis],
    charges: &[Vec<u128>],
    graphs: usize,
    keep: Keep,
) -> (Vec<Potentials>, Vec<u128>) {
    let mut after = vec![0_u128; graphs + 1];
    let mut tables = Vec::with_capacity(axes.len());
    for (axis, charges) in axes.iter().zip(charges).rev() {
        let table = Potentials::solve(axis, charges, &after, keep);
        after = table.best.iter().map(|layer| layer[0]).collect();
        tables.push(table);
    }
    tables.reverse();
    (tables, after)
}

/// The nodes of the cheapest plan with at most `left` graphs, of each axis.
pub(crate) fn walk(tables: &[Potentials], mut left: usize) -> Vec<Vec<usize>> {
    let mut of_axis = |table: &Potentials| {
        let (chosen, rest) = table.walk(left);
        left = rest;
        chosen
    };
    tables.iter().map(&mut of_axis).collect()
}

struct LayerFill<'a> {
    axis: &'a Axis,
    charges: &'a [u128],
    fewer: &'a [u128],
    best: Vec<u128>,
    next: Vec<u32>,
    evaluations: u64,
}

impl LayerFill<'_> {
    /// Fills rows `low..high` (nodes before the last), whose best next node is in `first..=last`.
    fn fill(&mut self, low: usize, high: usize, first: usize, last: usize) {
        if low >= high {
            return;
        }
        let row = low + (high - low) / 2;
        let mut cheapest = (INFEASIBLE, last);
        for next in first.max(row + 1)..=last {
            let rest = self.fewer[next];
            if rest == INFEASIBLE {
                continue;
            }
            self.evaluations += 1;
            let cost = self.axis.between(row, next) + self.charges[next - 1] + rest;
            if cost < cheapest.0 {
                cheapest = (cost, next);
            }
        }
        if cheapest.0 < self.best[row] {
            self.best[row] = cheapest.0;
            self.next[row] = cheapest.1 as u32;
        }
        self.fill(low, row, first, cheapest.1);
        self.fill(row + 1, high, cheapest.1, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::axis::AxisLimits;
    use crate::costs::{CostPath, ModelledCosts};
    use crate::request::Objective;

    #[test]
    fn a_layer_takes_n_log_n_interval_costs() {
        let costs = ModelledCosts::default().costs().unwrap();
        let replay = &costs.path(CostPath::Piecewise).unwrap().step_ns;
        const GRAPHS: u64 = 16;
        for objective in [Objective::Time, Objective::Padding] {
            for exponent in [6, 8, 10, 12, 14] {
                let distinct = 1_u32 << exponent;
                let steps = |count: u32| 1 + u64::from(count.wrapping_mul(2_654_435_761) % 97);
                let by_count = (1..=distinct).map(|count| (count, steps(count))).collect();
                let steps = BTreeMap::from([(1, by_count)]);
                let limits = AxisLimits {
                    maximum: distinct,
                    multiple_of: 1,
                    launched: false,
                    may_end_early: false,
                    replay_ns: replay,
                    launched_ns: None,
                };
                let axis = Axis::new(objective, &steps, &limits);
                let free = vec![0; axis.len()];
                let after = vec![0; GRAPHS as usize + 1];
                let table = Potentials::solve(&axis, &free, &after, Keep::First);
                // A level of the recursion reads each column once, and once more for each row.
                let bound = GRAPHS * u64::from(distinct) * (exponent + 2);
                assert!(table.evaluations <= bound, "{} above {bound}", table.evaluations);
            }
        }
    }
}
