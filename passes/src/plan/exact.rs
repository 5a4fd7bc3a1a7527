//! The lowest packing of a few items, by branch and bound.
//!
//! Take a lowest packing and place its items again in the order of their offsets, each as low as
//! it can be: none comes to lie higher. So some order of lowest placements is optimal, and it is
//! enough to search orders.

use super::greedy::{Gap, Placement};
use super::item::{Packing, Problem};

/// Beyond this many items the search would take too long.
pub(super) const MOST_ITEMS: usize = 8;

/// The lowest packing, given one that is not known to be.
pub(super) fn lowest(problem: &Problem, bound: u64, known: Packing) -> Packing {
    let mut search = Search { bound, best: known };
    search.extend(&mut Placement::new(problem), 0, 0);
    search.best
}

struct Search {
    bound: u64,
    best: Packing,
}

impl Search {
    fn extend(&mut self, placement: &mut Placement<'_>, placed: usize, height: u64) {
        if height >= self.best.height || self.best.height <= self.bound {
            return;
        }
        let items = &placement.problem.items;
        if placed == items.len() {
            self.best = placement.packing();
            return;
        }
        for (i, item) in items.iter().enumerate() {
            if placement.offsets[i].is_some() {
                continue;
            }
            let offset = placement.fit(i, Gap::Lowest);
            placement.offsets[i] = Some(offset);
            self.extend(placement, placed + 1, height.max(offset + item.size));
            placement.offsets[i] = None;
        }
    }
}
