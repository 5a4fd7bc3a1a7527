//! Low packings by placing items one after the other: several orders, two rules for the gap, and
//! a search of fixed length that brings items earlier that stand at the top.

use super::item::{Packing, Problem};
use std::cmp::Reverse;

/// Placements that the improvement of one packing may try.
const IMPROVEMENTS: usize = 1000;

/// Which gap an item goes into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gap {
    /// The lowest that is large enough.
    Lowest,
    /// The smallest that is large enough, the lowest among equals; the top if there is none.
    Tightest,
}

/// The offsets of the items placed so far.
#[derive(Debug)]
pub(super) struct Placement<'a> {
    pub(super) problem: &'a Problem,
    pub(super) offsets: Vec<Option<u64>>,
}

impl<'a> Placement<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        Self { problem, offsets: vec![None; problem.items.len()] }
    }

    /// The free ranges below `height` beside what `item` is in use together with, ascending.
    pub(super) fn gaps(&self, item: usize, height: u64) -> Vec<(u64, u64)> {
        let Problem { items, conflicts, .. } = self.problem;
        let placed = conflicts[item].iter();
        let mut taken: Vec<(u64, u64)> = placed
            .filter_map(|&other| self.offsets[other].map(|at| (at, at + items[other].size)))
            .collect();
        taken.sort_unstable();
        let mut gaps = Vec::with_capacity(taken.len() + 1);
        let mut free_from = 0;
        for (start, end) in taken {
            if start > free_from {
                gaps.push((free_from, start));
            }
            free_from = free_from.max(end);
        }
        if height > free_from {
            gaps.push((free_from, height));
        }
        gaps
    }

    pub(super) fn fit(&self, item: usize, gap: Gap) -> u64 {
        let size = self.problem.items[item].size;
        let gaps = self.gaps(item, u64::MAX);
        let mut fitting = gaps.iter().filter(|(start, end)| end - start >= size);
        let chosen = match gap {
            Gap::Lowest => fitting.next(),
            Gap::Tightest => fitting.min_by_key(|(start, end)| (end - start, *start)),
        };
        chosen.map_or(0, |(start, _)| *start)
    }

    pub(super) fn packing(&self) -> Packing {
        let offsets: Vec<u64> = self.offsets.iter().map(|o| o.unwrap_or(0)).collect();
        let ends = offsets.iter().zip(&self.problem.items).map(|(&at, item)| at + item.size);
        Packing { height: ends.max().unwrap_or(0), offsets }
    }
}

/// A packing with the order and the rule that made it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    order: Vec<usize>,
    gap: Gap,
    pub(super) packing: Packing,
}

/// One packing for each order and rule, the lowest first; only the first that reaches `bound`.
pub(super) fn attempts(problem: &Problem, bound: u64) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for order in orders(problem) {
        for gap in [Gap::Lowest, Gap::Tightest] {
            let packing = place(problem, &order, gap);
            let attempt = Attempt { order: order.clone(), gap, packing };
            if attempt.packing.height <= bound {
                return vec![attempt];
            }
            attempts.push(attempt);
        }
    }
    attempts.sort_by_key(|attempt| attempt.packing.height);
    attempts
}

fn orders(problem: &Problem) -> Vec<Vec<usize>> {
    let Problem { items, conflicts, .. } = problem;
    let length = |i: usize| (items[i].end - items[i].start) as u64 + 1;
    let area = |i: usize| u128::from(items[i].size) * u128::from(length(i));
    let crowd = |i: usize| {
        let others: u128 = conflicts[i].iter().map(|&j| u128::from(items[j].size)).sum();
        others + u128::from(items[i].size)
    };
    let sorted = |key: &dyn Fn(usize) -> (u128, u128)| {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&i| (Reverse(key(i)), items[i].start, i));
        order
    };
    let size = |i: usize| u128::from(items[i].size);
    let earliness = |i: usize| u128::MAX - items[i].start as u128;
    vec![
        sorted(&|i| (size(i), length(i).into())),
        sorted(&|i| (area(i), size(i))),
        sorted(&|i| (length(i).into(), size(i))),
        sorted(&|i| (crowd(i), size(i))),
        sorted(&|i| (earliness(i), size(i))),
        sorted(&|i| (items[i].end as u128, size(i))),
    ]
}

fn place(problem: &Problem, order: &[usize], gap: Gap) -> Packing {
    let mut placement = Placement::new(problem);
    for &item in order {
        placement.offsets[item] = Some(placement.fit(item, gap));
    }
    placement.packing()
}

/// Brings items that end at the top before items below them, as long as the packing gets no
/// higher, within a fixed number of tries.
pub(super) fn improve(problem: &Problem, bound: u64, attempt: Attempt) -> Packing {
    let items = &problem.items;
    let Attempt { mut order, gap, mut packing } = attempt;
    let mut best = packing.clone();
    let mut choice = Choice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..IMPROVEMENTS {
        let highest: Vec<usize> = (0..items.len())
            .filter(|&i| packing.offsets[i] + items[i].size == packing.height)
            .collect();
        let top = highest[choice.below(highest.len())];
        let Some(from) = order.iter().position(|&i| i == top) else { break };
        if from == 0 {
            break;
        }
        let to = choice.below(from);
        let mut moved = order.clone();
        moved.remove(from);
        moved.insert(to, top);
        let next = place(problem, &moved, gap);
        if next.height <= packing.height {
            order = moved;
            packing = next;
        }
        if packing.height < best.height {
            best = packing.clone();
        }
        if best.height <= bound {
            break;
        }
    }
    best
}

/// A fixed sequence of choices (xorshift), so that equal items give equal packings.
struct Choice(u64);

impl Choice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % (n.max(1) as u64)) as usize
    }
}
