//! What is packed: bytes in use for a time, and which are in use together.

/// Bytes that are in use from one position to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Item {
    /// The first position, inclusive.
    pub start: usize,
    /// The last position, inclusive.
    pub end: usize,
    /// How many bytes, or units of an alignment.
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
    /// Where each item begins, in the order of the items.
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

/// Items, and which of them are in use together.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) items: Vec<Item>,
    /// For each item, those that it is in use together with.
    pub(super) conflicts: Vec<Vec<usize>>,
    /// The items that stand for two.
    pub(super) twofold: Vec<usize>,
}

impl Problem {
    pub(super) fn of(items: Vec<Item>) -> Self {
        let mut by_start: Vec<usize> = (0..items.len()).collect();
        by_start.sort_by_key(|&i| items[i].start);
        let mut conflicts = vec![Vec::new(); items.len()];
        let mut active: Vec<usize> = Vec::new();
        for &i in &by_start {
            active.retain(|&j| items[j].end >= items[i].start);
            for &j in &active {
                if items[i].conflicts(&items[j]) {
                    conflicts[i].push(j);
                    conflicts[j].push(i);
                }
            }
            active.push(i);
        }
        Self { items, conflicts, twofold: Vec::new() }
    }

    /// The second of each pair made one with the first: what is left, and for each item the one that
    /// it became.
    pub(super) fn merge(&self, pairs: &[(usize, usize)]) -> (Self, Vec<usize>) {
        let mut first: Vec<usize> = (0..self.items.len()).collect();
        pairs.iter().for_each(|&(i, j)| first[j] = i);
        let mut merged = vec![0; self.items.len()];
        let mut items: Vec<Item> = Vec::new();
        for i in (0..self.items.len()).filter(|&i| first[i] == i) {
            merged[i] = items.len();
            items.push(self.items[i]);
        }
        let mut twofold = Vec::new();
        for &(i, j) in pairs {
            merged[j] = merged[i];
            let item = &mut items[merged[i]];
            item.start = item.start.min(self.items[j].start);
            item.end = item.end.max(self.items[j].end);
            twofold.push(merged[i]);
        }
        let mut conflicts = vec![Vec::new(); items.len()];
        for (i, others) in self.conflicts.iter().enumerate() {
            conflicts[merged[i]].extend(others.iter().map(|&other| merged[other]));
        }
        for list in &mut conflicts {
            list.sort_unstable();
            list.dedup();
        }
        (Self { items, conflicts, twofold }, merged)
    }
}
