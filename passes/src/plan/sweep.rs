//! Packing below a given height: items are placed in the order in which they start, each at an
//! end of a gap between what is live then, and a dead end is left for the last choice open.
//!
//! What is live determines what can follow, so a configuration is never tried twice, and a graph
//! of many equal layers costs as many tries for each layer as one of few.

use super::greedy::Placement;
use super::item::{Packing, Problem};
use rustc_hash::FxHashSet;
use std::cmp::Reverse;

/// Which choice is tried first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preference {
    /// The gap that leaves the least around the slot.
    Tightest,
    /// Low for what lives longer than most, high for the rest.
    LongLow,
    /// High for what lives longer than most, low for the rest.
    LongHigh,
}

impl Preference {
    pub(super) const ALL: [Self; 3] = [Self::Tightest, Self::LongLow, Self::LongHigh];
}

/// A packing of at most `height`, if a search finds one.
pub(super) fn within(
    problem: &Problem,
    height: u64,
    preference: Preference,
    configurations: usize,
) -> Option<Packing> {
    let Problem { items, conflicts, twofold } = problem;
    let length = |i: usize| items[i].end - items[i].start;
    let mut lengths: Vec<usize> = (0..items.len()).map(length).collect();
    lengths.sort_unstable();
    let usual = lengths.get(items.len() * 3 / 4).copied().unwrap_or(0);
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| (items[i].start, Reverse(items[i].size), i));
    let mut tried: Vec<FxHashSet<Vec<u64>>> = vec![FxHashSet::default(); items.len()];
    let mut placement = Placement::new(problem);
    // Of each item placed, the offsets that are left to be tried.
    let mut choices: Vec<std::vec::IntoIter<u64>> = Vec::with_capacity(items.len());
    loop {
        let depth = choices.len();
        if let Some(&item) = order.get(depth) {
            let live = conflicts[item].iter().chain(twofold);
            let live: Vec<u64> = live.filter_map(|&i| placement.offsets[i]).collect();
            let fresh = tried[depth].len() < configurations && tried[depth].insert(live);
            let mut offsets = match fresh {
                true => gap_ends(&placement, item, height),
                false => vec![],
            };
            let low = (preference == Preference::LongLow) == (length(item) > usual);
            if preference != Preference::Tightest {
                offsets.sort_unstable_by_key(|&at| if low { at } else { u64::MAX - at });
            }
            choices.push(offsets.into_iter());
        } else {
            return Some(placement.packing());
        }
        // Takes the next choice of the deepest item that has one left.
        loop {
            let Some(offset) = choices.last_mut()?.next() else {
                choices.pop();
                if let Some(&item) = choices.len().checked_sub(1).and_then(|d| order.get(d)) {
                    placement.offsets[item] = None;
                }
                continue;
            };
            placement.offsets[order[choices.len() - 1]] = Some(offset);
            break;
        }
    }
}

/// The lowest and the highest offset for `item` in each gap that holds it, tightest gap first.
fn gap_ends(placement: &Placement<'_>, item: usize, height: u64) -> Vec<u64> {
    let size = placement.problem.items[item].size;
    let mut gaps = placement.gaps(item, height);
    gaps.retain(|(start, end)| end - start >= size);
    gaps.sort_by_key(|(start, end)| (end - start, *start));
    let mut ends = Vec::with_capacity(2 * gaps.len());
    for (start, end) in gaps {
        ends.push(start);
        if end - size != start {
            ends.push(end - size);
        }
    }
    ends
}
