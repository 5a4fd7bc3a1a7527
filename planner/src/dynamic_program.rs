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
    /// The cost from the first node, for each number of graphs.
    best: Vec<u128>,
    next: Vec<Vec<u32>>,
    graphs_per_size: usize,
    /// Interval costs that were computed.
    evaluations: u64,
}

impl Potentials {
    /// Fills the table for `0..after.len()` graphs; `after[r]` is what the rest of the plan costs
    /// with `r` graphs left.
    fn solve(axis: &Axis, after: &[u128]) -> Self {
        let nodes = axis.len() + 1;
        let mut layers: Vec<Vec<u128>> = Vec::with_capacity(after.len());
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
                // No later layer reads this one.
                let fewer = &std::mem::take(&mut layers[fewer]);
                let mut layer = LayerFill { axis, fewer, best, next, evaluations: 0 };
                layer.fill(0, nodes - 1, 1, nodes - 1);
                (best, next) = (layer.best, layer.next);
                table.evaluations += layer.evaluations;
            }
            table.best.push(best[0]);
            layers.push(best);
            table.next.push(next);
        }
        table
    }

    /// The nodes of the cheapest list with at most `graphs` graphs, and the graphs left over.
    fn walk(&self, mut graphs: usize) -> (Vec<usize>, usize) {
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
pub(crate) fn chain(axes: &[Axis], graphs: usize) -> (Vec<Potentials>, Vec<u128>) {
    let mut after = vec![0_u128; graphs + 1];
    let mut tables = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        let table = Potentials::solve(axis, &after);
        after.clone_from(&table.best);
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
            let cost = self.axis.between(row, next) + rest;
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
        let costs = ModelledCosts::default().costs();
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
                let table = Potentials::solve(&axis, &vec![0; GRAPHS as usize + 1]);
                // A level of the recursion reads each column once, and once more for each row.
                let bound = GRAPHS * u64::from(distinct) * (exponent + 2);
                assert!(table.evaluations <= bound, "{} above {bound}", table.evaluations);
            }
        }
    }
}
