//! The cheapest plan within budgets of memory and capture time.
//!
//! A budget couples all sizes, so it is priced: with prices on bytes and nanoseconds the dynamic
//! program gives a lower bound for every plan within the budgets, and usually a plan within them.
//! What the bound leaves open is searched: partial lists are extended size by size and dropped as
//! soon as their bound reaches the best plan known, or another partial list is better in cost,
//! graphs, memory and capture time. The search is exact unless it hits its limit of work; then the
//! remaining difference to the bound is reported.

use crate::axis::Axis;
use crate::budget_by_count;
use crate::budgeted::{Budgeted, BudgetedPlan, LARGEST_CHARGE, Resources, UNLIMITED};
use crate::dynamic_program::{INFEASIBLE, Keep, Potentials, chain, walk};

/// Extensions of partial lists that are tried before the search settles for what it has.
const WORK_LIMIT: u64 = 20_000_000;

/// Partial lists that are kept at once, over all nodes.
const LABEL_LIMIT: usize = 100_000;

/// Rounds of bisection on each price.
const PRICE_ROUNDS: usize = 2;
const BISECTIONS: usize = 24;

struct Priced {
    tables: Vec<Potentials>,
    prices: [f64; 2],
}

#[derive(Clone, Copy)]
struct Label {
    cost: u128,
    graphs_left: usize,
    used: Resources,
    parent: usize,
    node: usize,
    axis: usize,
}

impl Budgeted<'_> {
    /// Solves, from a plan that is known to be within the budgets.
    pub(crate) fn solve(mut self, known: Vec<Vec<usize>>) -> BudgetedPlan {
        if let Some(plan) = budget_by_count::solve(&self) {
            return plan;
        }
        self.budgets = [0, 1].map(|resource| self.reachable_budget(resource));
        let mut plan = BudgetedPlan { cost: self.cost(&known), nodes: known, at_least: 0 };
        let priced = self.price(&mut plan);
        if plan.at_least < plan.cost {
            self.search(&priced, &mut plan);
        }
        plan
    }

    /// The largest amount within the budget that any list can use: sums of multiples of the common
    /// divisor are multiples of it.
    fn reachable_budget(&self, resource: usize) -> u64 {
        let amounts = self.axes.iter().flat_map(|axis| &axis.resources[resource]);
        let divisor = amounts.fold(0, |divisor, amount| gcd(divisor, *amount));
        let budget = self.budgets[resource];
        if divisor == 0 || budget == UNLIMITED { budget } else { budget - budget % divisor }
    }

    fn used(&self, nodes: &[Vec<usize>]) -> Resources {
        let mut used = [0_u64; 2];
        for (axis, nodes) in self.axes.iter().zip(nodes) {
            nodes.iter().for_each(|node| used = added(used, axis, *node));
        }
        used
    }

    fn within(&self, used: Resources) -> bool {
        used[0] <= self.budgets[0] && used[1] <= self.budgets[1]
    }

    fn cost(&self, nodes: &[Vec<usize>]) -> u128 {
        let mut cost = 0;
        for ((axis, charges), nodes) in self.axes.iter().zip(self.charges).zip(nodes) {
            let mut from = 0;
            for node in nodes {
                cost += axis.between(from, *node) + charges[node - 1];
                from = *node;
            }
            cost += axis.ending_at(from).unwrap_or(0);
        }
        cost
    }

    /// What an amount costs at a price, rounded down, so that bounds stay bounds.
    fn charge(prices: [f64; 2], amounts: Resources) -> u128 {
        let charge = |(price, amount): (f64, u64)| {
            ((price * amount as f64 * (1.0 - 1e-12)) as u128).min(LARGEST_CHARGE)
        };
        prices.into_iter().zip(amounts).map(charge).sum()
    }

    fn tables(&self, prices: [f64; 2]) -> Priced {
        let of_axis = |(axis, charges): (&Axis, &Vec<u128>)| -> Vec<u128> {
            (0..axis.len())
                .map(|index| {
                    let amounts = axis.resources.each_ref().map(|amounts| amounts[index]);
                    charges[index] + Self::charge(prices, amounts)
                })
                .collect()
        };
        let charges: Vec<Vec<u128>> = self.axes.iter().zip(self.charges).map(of_axis).collect();
        let (tables, _) = chain(self.axes, &charges, self.max_graphs, Keep::All);
        Priced { tables, prices }
    }

    /// What the budgets are worth at these prices, rounded up.
    fn budget_worth(&self, prices: [f64; 2]) -> u128 {
        let worth = |resource: usize| {
            (prices[resource] * self.budgets[resource] as f64 * (1.0 + 1e-12)).ceil() as u128
        };
        worth(0) + worth(1)
    }

    /// Raises the bound and lowers the plan by bisection on one price after the other; gives back
    /// the tables of the best bound.
    fn price(&self, plan: &mut BudgetedPlan) -> Priced {
        let mut best = self.tables([0.0; 2]);
        self.learn(&best, plan);
        for _ in 0..PRICE_ROUNDS {
            for resource in 0..2 {
                if plan.at_least >= plan.cost {
                    return best;
                }
                self.bisect(resource, &mut best, plan);
            }
        }
        best
    }

    fn bisect(&self, resource: usize, best: &mut Priced, plan: &mut BudgetedPlan) {
        let budget = self.budgets[resource];
        let mut low = 0.0;
        let mut high = plan.cost as f64 / (budget.max(1) as f64) + 1.0;
        for round in 0..BISECTIONS {
            let price = if round == 0 { 0.0 } else { low + (high - low) / 2.0 };
            let mut prices = best.prices;
            prices[resource] = price;
            let priced = self.tables(prices);
            let used = self.used(&walk(&priced.tables, self.max_graphs));
            if self.learn(&priced, plan) {
                *best = priced;
            }
            if used[resource] > budget {
                low = price;
            } else if round == 0 {
                return;
            } else {
                high = price;
            }
            if plan.at_least >= plan.cost || high - low < high * 1e-9 {
                return;
            }
        }
    }

    /// Takes the bound and the plan of these prices; says whether the bound rose.
    fn learn(&self, priced: &Priced, plan: &mut BudgetedPlan) -> bool {
        let nodes = walk(&priced.tables, self.max_graphs);
        if self.within(self.used(&nodes)) {
            let cost = self.cost(&nodes);
            if cost < plan.cost {
                (plan.cost, plan.nodes) = (cost, nodes);
            }
        }
        let bound = priced.tables[0].at(self.max_graphs, 0);
        let bound = bound.saturating_sub(self.budget_worth(priced.prices)).min(plan.cost);
        let rose = bound > plan.at_least || plan.at_least == 0;
        plan.at_least = plan.at_least.max(bound);
        rose
    }

    fn search(&self, priced: &Priced, plan: &mut BudgetedPlan) {
        let mut search = Search {
            problem: self,
            priced,
            worth: self.budget_worth(priced.prices),
            labels: Vec::new(),
            open: self.axes.iter().map(|axis| vec![Vec::new(); axis.len() + 1]).collect(),
            best: plan.cost,
            finished: None,
            work: 0,
        };
        let proven = search.run();
        if let Some(finished) = search.finished {
            plan.cost = search.best;
            plan.nodes = search.nodes_to(finished);
        }
        if proven {
            plan.at_least = plan.cost;
        }
    }
}

struct Search<'a> {
    problem: &'a Budgeted<'a>,
    priced: &'a Priced,
    worth: u128,
    labels: Vec<Label>,
    /// Labels that are not yet extended, by axis and node.
    open: Vec<Vec<Vec<usize>>>,
    best: u128,
    finished: Option<usize>,
    work: u64,
}

impl Search<'_> {
    /// Whether it ended before its limit of work.
    fn run(&mut self) -> bool {
        let root = Label {
            cost: 0,
            graphs_left: self.problem.max_graphs,
            used: [0; 2],
            parent: usize::MAX,
            node: 0,
            axis: 0,
        };
        self.labels.push(root);
        self.open[0][0].push(0);
        for axis in 0..self.problem.axes.len() {
            for node in 0..=self.problem.axes[axis].len() {
                for index in std::mem::take(&mut self.open[axis][node]) {
                    self.end_list(index);
                    self.extend_list(index);
                    if self.work > WORK_LIMIT || self.labels.len() > LABEL_LIMIT {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Lets the list of this label end at its node.
    fn end_list(&mut self, index: usize) {
        let label = self.labels[index];
        let Some(end) = self.problem.axes[label.axis].ending_at(label.node) else { return };
        let next_axis = label.axis + 1;
        let ended =
            Label { cost: label.cost + end, parent: index, node: 0, axis: next_axis, ..label };
        let Some(table) = self.priced.tables.get(next_axis) else {
            if ended.cost < self.best {
                self.best = ended.cost;
                self.finished = Some(self.labels.len());
                self.labels.push(ended);
            }
            return;
        };
        if self.reaches(&ended, table.at(ended.graphs_left, 0)) {
            self.insert(ended);
        }
    }

    /// Appends every further size to the list of this label.
    fn extend_list(&mut self, index: usize) {
        let label = self.labels[index];
        let axis = &self.problem.axes[label.axis];
        let charges = &self.problem.charges[label.axis];
        let Some(graphs_left) = label.graphs_left.checked_sub(axis.graphs_per_size) else {
            return;
        };
        self.work += (axis.len() - label.node) as u64;
        for node in label.node + 1..=axis.len() {
            let used = added(label.used, axis, node);
            if !self.problem.within(used) {
                continue;
            }
            let cost = label.cost + axis.between(label.node, node) + charges[node - 1];
            let extended = Label { cost, graphs_left, used, parent: index, node, axis: label.axis };
            if self.reaches(&extended, self.priced.tables[label.axis].at(graphs_left, node)) {
                self.insert(extended);
            }
        }
    }

    /// Whether a partial list, with `rest` as its bound on what follows, can still beat the best.
    fn reaches(&self, label: &Label, rest: u128) -> bool {
        let charged = Budgeted::charge(self.priced.prices, label.used);
        rest != INFEASIBLE && label.cost + charged + rest < self.best + self.worth
    }

    /// Adds a label unless one at the same node is as good in every respect; drops those it beats.
    fn insert(&mut self, new: Label) {
        let as_good = |a: &Label, b: &Label| {
            a.cost <= b.cost
                && a.graphs_left >= b.graphs_left
                && a.used[0] <= b.used[0]
                && a.used[1] <= b.used[1]
        };
        let at_node = &mut self.open[new.axis][new.node];
        if at_node.iter().any(|index| as_good(&self.labels[*index], &new)) {
            return;
        }
        at_node.retain(|index| !as_good(&new, &self.labels[*index]));
        at_node.push(self.labels.len());
        self.labels.push(new);
    }

    fn nodes_to(&self, mut index: usize) -> Vec<Vec<usize>> {
        let mut nodes = vec![Vec::new(); self.problem.axes.len()];
        while index != usize::MAX {
            let label = self.labels[index];
            if label.node > 0 {
                nodes[label.axis].push(label.node);
            }
            index = label.parent;
        }
        for nodes in &mut nodes {
            nodes.reverse();
        }
        nodes
    }
}

/// What is used with one more size.
fn added(used: Resources, axis: &Axis, node: usize) -> Resources {
    [0, 1].map(|resource| used[resource].saturating_add(axis.resources[resource][node - 1]))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
