//! Which items share a step.

/// Steps by the places of their items, ascending, and the items that no step takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// The items of each step.
    pub steps: Vec<Vec<usize>>,
    /// Items that fit no step even alone.
    pub refused: Vec<usize>,
}

/// Up to so many items, every way to share steps is compared.
const EXACT: usize = 10;

/// Packs `items`, each given by its rows on every path, into steps of the least cost: the least of
/// all up to 10 items; above that, of neighbours by size. Never more steps than items.
///
/// `cost` is what a step costs, in any unit, by the rows of its items together on each path and
/// their number; `None` where no step takes them.
pub fn pack(items: &[Vec<u64>], cost: &impl Fn(&[u64], usize) -> Option<f64>) -> Packing {
    let (taken, refused): (Vec<usize>, Vec<usize>) =
        (0..items.len()).partition(|&i| cost(&items[i], 1).is_some());
    let mut steps = match taken.len() <= EXACT {
        true => of_all_ways(items, &taken, cost),
        false => of_neighbours(items, taken, cost),
    };
    steps.iter_mut().for_each(|step| step.sort_unstable());
    steps.sort_unstable();
    Packing { steps, refused }
}

fn cost_of(
    items: &[Vec<u64>],
    step: &[usize],
    cost: &impl Fn(&[u64], usize) -> Option<f64>,
) -> Option<f64> {
    let paths = step.first().map_or(0, |&first| items[first].len());
    let sums = (0..paths).map(|path| step.iter().map(|&i| items[i][path]).sum());
    cost(&Vec::from_iter(sums), step.len())
}

/// The least sum of costs over all partitions, by dynamic programming over subsets.
fn of_all_ways(
    items: &[Vec<u64>],
    taken: &[usize],
    cost: &impl Fn(&[u64], usize) -> Option<f64>,
) -> Vec<Vec<usize>> {
    let members = |set: usize| -> Vec<usize> {
        let places = taken.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0);
        places.map(|(_, &item)| item).collect()
    };
    let sets = 1usize << taken.len();
    let costs = Vec::from_iter((0..sets).map(|set| match set {
        0 => None,
        set => cost_of(items, &members(set), cost),
    }));
    // Of each set: the least cost of its steps and the step that has its first item.
    let mut best = vec![(0.0, 0); sets];
    for set in 1..sets {
        let first = set & set.wrapping_neg();
        let others = set ^ first;
        let (mut least, mut part) = ((f64::INFINITY, first), others);
        loop {
            let step = first | part;
            if let Some(cost) = costs[step] {
                let total = cost + best[set ^ step].0;
                if total < least.0 {
                    least = (total, step);
                }
            }
            if part == 0 {
                break;
            }
            part = (part - 1) & others;
        }
        best[set] = least;
    }
    let (mut steps, mut left) = (Vec::new(), sets - 1);
    while left != 0 {
        let step = best[left].1;
        steps.push(members(step));
        left ^= step;
    }
    steps
}

/// The least sum of costs over all ways to cut the items, by size, into runs.
fn of_neighbours(
    items: &[Vec<u64>],
    mut taken: Vec<usize>,
    cost: &impl Fn(&[u64], usize) -> Option<f64>,
) -> Vec<Vec<usize>> {
    taken.sort_by_key(|&i| (items[i].iter().sum::<u64>(), i));
    let paths = items[taken[0]].len();
    // Up to each item: the least cost, and where the last run begins.
    let mut best = vec![(f64::INFINITY, 0); taken.len() + 1];
    best[0] = (0.0, 0);
    for start in 0..taken.len() {
        let mut rows = vec![0; paths];
        for (end, &item) in taken.iter().enumerate().skip(start) {
            rows.iter_mut().zip(&items[item]).for_each(|(sum, rows)| *sum += rows);
            // Larger runs do not fit either.
            let Some(cost) = cost(&rows, end + 1 - start) else { break };
            let total = best[start].0 + cost;
            if total < best[end + 1].0 {
                best[end + 1] = (total, start);
            }
        }
    }
    let (mut steps, mut end) = (Vec::new(), taken.len());
    while end > 0 {
        let start = best[end].1;
        steps.push(taken[start..end].to_vec());
        end = start;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_testing::{Rng, soak};

    /// The least cost over all partitions, by putting each item into each step there is.
    fn brute_force(
        items: &[Vec<u64>],
        at: usize,
        steps: &mut Vec<Vec<usize>>,
        cost: &impl Fn(&[u64], usize) -> Option<f64>,
    ) -> f64 {
        if at == items.len() {
            return steps
                .iter()
                .map(|step| cost_of(items, step, cost).unwrap_or(f64::INFINITY))
                .sum();
        }
        let mut least = f64::INFINITY;
        for place in 0..=steps.len() {
            if place == steps.len() {
                steps.push(Vec::new());
            }
            steps[place].push(at);
            least = least.min(brute_force(items, at + 1, steps, cost));
            steps[place].pop();
            if steps[place].is_empty() {
                steps.pop();
            }
        }
        least
    }

    /// Budgets of random sizes and random costs; a step takes the cheapest that holds it.
    fn random_cost(rng: &mut Rng) -> impl Fn(&[u64], usize) -> Option<f64> + use<> {
        let count = 1 + rng.below(4);
        let budget = |rng: &mut Rng| (1 + rng.below(60) as u64, 1.0 + rng.below(1000) as f64);
        let budgets = Vec::from_iter((0..count).map(|_| budget(rng)));
        let most = 1 + rng.below(8);
        move |rows: &[u64], items: usize| {
            let fits = budgets.iter().filter(|(size, _)| rows.iter().all(|rows| rows <= size));
            let costs = fits.map(|(_, cost)| *cost);
            costs.reduce(f64::min).filter(|_| items <= most)
        }
    }

    fn all_once(items: &[Vec<u64>], packing: &Packing) {
        let steps = packing.steps.iter().flatten().chain(&packing.refused);
        let mut places = Vec::from_iter(steps.copied());
        places.sort_unstable();
        assert!(places.into_iter().eq(0..items.len()));
        assert!(packing.steps.iter().all(|step| step.is_sorted() && !step.is_empty()));
        assert!(packing.steps.len() <= items.len());
    }

    #[test]
    fn up_to_eight_items_cost_the_least() {
        let mut rng = Rng::new(1);
        for _ in 0..soak(300) {
            let cost = random_cost(&mut rng);
            let (count, paths) = (1 + rng.below(8), 1 + rng.below(2));
            let item = |rng: &mut Rng| Vec::from_iter((0..paths).map(|_| rng.below(40) as u64));
            let items = Vec::from_iter((0..count).map(|_| item(&mut rng)));
            let packing = pack(&items, &cost);
            all_once(&items, &packing);
            let kept: Vec<Vec<u64>> = (0..items.len())
                .filter(|i| !packing.refused.contains(i))
                .map(|i| items[i].clone())
                .collect();
            let found: f64 =
                packing.steps.iter().map(|step| cost_of(&items, step, &cost).unwrap()).sum();
            assert_eq!(found, brute_force(&kept, 0, &mut Vec::new(), &cost), "{items:?}");
        }
    }

    #[test]
    fn many_items_never_cost_more_than_one_a_step() {
        let mut rng = Rng::new(2);
        for _ in 0..soak(200) {
            let cost = random_cost(&mut rng);
            let items = Vec::from_iter((0..60).map(|_| vec![1 + rng.below(40) as u64]));
            let packing = pack(&items, &cost);
            all_once(&items, &packing);
            let alone: f64 = items.iter().filter_map(|item| cost(item, 1)).sum();
            let found: f64 =
                packing.steps.iter().map(|step| cost_of(&items, step, &cost).unwrap()).sum();
            assert!(found <= alone, "{found} against {alone}");
        }
    }

    /// Powers of two as budgets, each costing its size and so much beside, as steps do.
    fn doubling_cost(rng: &mut Rng) -> impl Fn(&[u64], usize) -> Option<f64> + use<> {
        let (largest, beside) = (64 << rng.below(3), rng.below(64) as f64);
        let most = 3 + rng.below(14);
        move |rows: &[u64], items: usize| {
            let budget = rows[0].next_power_of_two().max(8);
            (budget <= largest && items <= most).then_some(budget as f64 + beside)
        }
    }

    fn whole_cost(
        items: &[Vec<u64>],
        steps: &[Vec<usize>],
        cost: &impl Fn(&[u64], usize) -> Option<f64>,
    ) -> f64 {
        steps.iter().map(|step| cost_of(items, step, cost).unwrap()).sum()
    }

    /// Smallest first, into a step while it fits; a step is closed early where two smaller graphs
    /// cost less than one.
    fn greedy(items: &[Vec<u64>], cost: &impl Fn(&[u64], usize) -> Option<f64>) -> Vec<Vec<usize>> {
        let mut order = Vec::from_iter(0..items.len());
        order.sort_by_key(|&i| (items[i][0], i));
        let mut steps: Vec<Vec<usize>> = Vec::new();
        for item in order {
            let alone = cost(&items[item], 1).unwrap();
            let joins = steps.last().is_some_and(|step| {
                let together = [&step[..], &[item]].concat();
                let apart = cost_of(items, step, cost).unwrap() + alone;
                cost_of(items, &together, cost).is_some_and(|joined| joined <= apart)
            });
            match steps.last_mut().filter(|_| joins) {
                Some(step) => step.push(item),
                None => steps.push(vec![item]),
            }
        }
        steps
    }

    /// Above ten items: never above greedy packing, and near the least of all ways.
    #[test]
    fn many_items_cost_no_more_than_packed_greedily_and_little_more_than_the_least() {
        let mut rng = Rng::new(3);
        let (mut found, mut least, mut worst) = (0.0, 0.0, 1.0_f64);
        for round in 0..soak(120) {
            let cost = doubling_cost(&mut rng);
            let count = 11 + rng.below(if round % 10 == 0 { 3 } else { 60 });
            let items = Vec::from_iter((0..count).map(|_| vec![1 + rng.below(64) as u64]));
            let packing = pack(&items, &cost);
            all_once(&items, &packing);
            let taken = whole_cost(&items, &packing.steps, &cost);
            let by_greed = whole_cost(&items, &greedy(&items, &cost), &cost);
            assert!(taken <= by_greed, "{taken} against {by_greed}: {items:?}");
            if count < 14 {
                let every_way = of_all_ways(&items, &Vec::from_iter(0..count), &cost);
                let best = whole_cost(&items, &every_way, &cost);
                (found, least) = (found + taken, least + best);
                worst = worst.max(taken / best);
            }
        }
        println!("{:.3} times the least, at most {worst:.3}", found / least);
        assert!(found <= 1.15 * least, "{found} against {least}");
        assert!(worst <= 1.4, "{worst} times the least");
    }

    #[test]
    fn an_item_that_no_step_takes_leaves_the_others() {
        let cost = |rows: &[u64], _: usize| (rows[0] <= 8).then_some(1.0);
        let packing = pack(&[vec![3], vec![9], vec![5]], &cost);
        assert_eq!(packing, Packing { steps: vec![vec![0, 2]], refused: vec![1] });
        assert_eq!(pack(&[], &cost), Packing::default());
    }
}
