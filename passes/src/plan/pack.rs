//! Packing intervals of time into an address range (dynamic storage allocation).

use super::{exact, greedy, sweep};

/// Bytes that are in use from one position to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Item {
    /// The first position, inclusive.
    pub start: usize,
    /// The last position, inclusive.
    pub end: usize,
    /// How many bytes.
    pub size: u64,
}

impl Item {
    /// Whether both are in use at some position.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// An offset for each item such that items in use at one position do not overlap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// By item.
    pub offsets: Vec<u64>,
    /// The end of the highest item.
    pub height: u64,
}

/// The largest sum of sizes in use at one position: a lower bound of every packing's height.
pub fn largest_live_sum(items: &[Item]) -> u64 {
    // The sum grows only where an item starts.
    let mut events: Vec<(usize, bool, u64)> = Vec::with_capacity(2 * items.len());
    for item in items {
        events.push((item.start, true, item.size));
        events.push((item.end.saturating_add(1), false, item.size));
    }
    events.sort_unstable();
    let (mut live, mut largest) = (0u64, 0u64);
    for (_, starts, size) in events {
        live = if starts { live.saturating_add(size) } else { live.saturating_sub(size) };
        largest = largest.max(live);
    }
    largest
}

/// The items that each item is in use together with.
#[derive(Debug)]
pub(super) struct Conflicts {
    of: Vec<Vec<usize>>,
}

impl Conflicts {
    pub(super) fn among(items: &[Item]) -> Self {
        let mut by_start: Vec<usize> = (0..items.len()).collect();
        by_start.sort_by_key(|&i| items[i].start);
        let mut of = vec![Vec::new(); items.len()];
        let mut active: Vec<usize> = Vec::new();
        for &i in &by_start {
            active.retain(|&j| items[j].end >= items[i].start);
            for &j in &active {
                if items[i].conflicts(&items[j]) {
                    of[i].push(j);
                    of[j].push(i);
                }
            }
            active.push(i);
        }
        Self { of }
    }

    pub(super) fn of(&self, item: usize) -> &[usize] {
        &self.of[item]
    }
}

/// A low packing of `items`: the lowest for up to [`exact::MOST_ITEMS`], otherwise the best of
/// greedy orders, of searches below heights from the bound upwards, and of improvements within a
/// fixed budget. Deterministic.
///
/// Sizes must sum to less than `u64::MAX`.
pub fn pack(items: &[Item]) -> Packing {
    let bound = largest_live_sum(items);
    let conflicts = Conflicts::among(items);
    let attempts = greedy::attempts(items, &conflicts, bound);
    let Some(best) = attempts.first().map(|attempt| attempt.packing.clone()) else {
        return Packing::default();
    };
    if best.height <= bound {
        return best;
    }
    if items.len() <= exact::MOST_ITEMS {
        return exact::lowest(items, &conflicts, bound, best);
    }
    let heights = STEPS.iter().map(|step| bound + bound / 64 * step);
    let swept = heights
        .take_while(|&height| height < best.height)
        .find_map(|height| sweep::within(items, &conflicts, height));
    if let Some(packing) = swept {
        return packing;
    }
    let improved =
        attempts.into_iter().take(3).map(|a| greedy::improve(items, &conflicts, bound, a));
    improved.min_by_key(|packing| packing.height).unwrap_or(best)
}

/// Heights above the bound at which a packing is sought, in 64ths of the bound.
const STEPS: [u64; 8] = [0, 1, 2, 3, 4, 6, 8, 16];
