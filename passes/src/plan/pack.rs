//! Packing intervals of time into an address range (dynamic storage allocation).

use super::fold::fold;
use super::item::{Item, Packing, Problem, largest_live_sum};
use super::sweep::{self, Preference};
use super::{exact, greedy};

/// A low packing of `items`: the lowest for up to `MOST_ITEMS`, otherwise the best of
/// greedy orders, of searches below heights from the bound upwards, and of improvements within a
/// fixed budget. Where items repeat, what repeats is packed once. Deterministic.
///
/// Sizes must sum to less than 2^58.
pub fn pack(items: &[Item]) -> Packing {
    let bound = largest_live_sum(items);
    let folded = fold(items);
    if let Some(folded) = &folded {
        let packing = pack_below(&folded.kept, bound);
        if packing.height <= bound {
            return folded.unfold(&packing);
        }
    }
    let packing = pack_below(&Problem::of(items.to_vec()), bound);
    match folded.map(|f| f.unfold(&pack_below(&f.kept, bound))) {
        Some(repeated) if repeated.height <= packing.height => repeated,
        _ => packing,
    }
}

fn pack_below(problem: &Problem, bound: u64) -> Packing {
    let attempts = greedy::attempts(problem, bound);
    let Some(best) = attempts.first().map(|attempt| attempt.packing.clone()) else {
        return Packing::default();
    };
    if best.height <= bound {
        return best;
    }
    if problem.items.len() <= exact::MOST_ITEMS && problem.twofold.is_empty() {
        return exact::lowest(problem, bound, best);
    }
    let improved = attempts.into_iter().take(STARTS).map(|a| greedy::improve(problem, bound, a));
    let best = improved.min_by_key(|packing| packing.height).unwrap_or(best);
    if best.height <= bound {
        return best;
    }
    let heights = STEPS.iter().map(|step| bound + (bound * step).div_ceil(64));
    let swept = heights.take_while(|&height| height < best.height).find_map(|height| {
        Preference::ALL.into_iter().find_map(|preference| {
            let configurations = if height == bound { AT_BOUND } else { ABOVE_BOUND };
            sweep::within(problem, height, preference, configurations)
        })
    });
    swept.unwrap_or(best)
}

/// How many greedy packings are improved.
const STARTS: usize = 3;

/// Heights at which a search is tried, in 64ths of the bound above it.
const STEPS: [u64; 6] = [0, 1, 2, 4, 8, 16];

/// Configurations of live items that a search tries for one item's placement at the bound.
const AT_BOUND: usize = 1000;

/// Configurations of live items that a search tries for one item's placement above the bound.
const ABOVE_BOUND: usize = 60;
