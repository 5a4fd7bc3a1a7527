//! The lowest packing of a few items, by branch and bound.
//!
//! Take a lowest packing and place its items again in the order of their offsets, each as low as
//! it can be: none comes to lie higher. So some order of lowest placements is optimal, and it is
//! enough to search orders.

use super::greedy::{Gap, Placement};
use super::item::{Conflicts, Item, Packing};

/// Beyond this many items the search would take too long.
pub(super) const MOST_ITEMS: usize = 8;

/// The lowest packing, given one that is not known to be.
pub(super) fn lowest(items: &[Item], conflicts: &Conflicts, bound: u64, known: Packing) -> Packing {
    let mut search = Search { items, conflicts, bound, best: known };
    search.extend(&mut Placement::new(items.len()), 0, 0);
    search.best
}

struct Search<'a> {
    items: &'a [Item],
    conflicts: &'a Conflicts,
    bound: u64,
    best: Packing,
}

impl Search<'_> {
    fn extend(&mut self, placement: &mut Placement, placed: usize, height: u64) {
        if height >= self.best.height || self.best.height <= self.bound {
            return;
        }
        if placed == self.items.len() {
            self.best = placement.packing(self.items);
            return;
        }
        for item in 0..self.items.len() {
            if placement.offset(item).is_some() {
                continue;
            }
            let offset = placement.fit(self.items, self.conflicts, item, Gap::Lowest);
            placement.set(item, Some(offset));
            self.extend(placement, placed + 1, height.max(offset + self.items[item].size));
            placement.set(item, None);
        }
    }
}
