//! Lists without a log: the least worst-case padding share for a number of graphs and a maximum.
//!
//! The padding share of a step of `n` tokens at size `c` is `(c - n) / c`, the part of the rows
//! that is padding; it is worst just above the next smaller size.

use serde::Serialize;

use crate::capture_sizes::CaptureSizes;
use crate::capture_sizes::MAX_GRAPHS;
use crate::error::PlannerError;
use crate::traffic::MAX_STEP_TOKENS;

/// Lists with the least worst-case padding share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BoundedLists {
    /// The lists to capture for it.
    pub sizes: CaptureSizes,
    /// The worst padding share, as padding rows and the size they are in.
    pub worst: (u32, u32),
}

impl BoundedLists {
    /// The worst padding share, from 0 to 1.
    pub fn worst_share(&self) -> f64 {
        f64::from(self.worst.0) / f64::from(self.worst.1)
    }
}

/// Bounds are multiples of 2^-50: two shares of sizes up to 2^24 differ by at least 2^-48, so the
/// least feasible multiple leaves no share between it and the optimum.
const RESOLUTION: u32 = 50;

/// Chooses lists of at most `graphs` graphs over both, for steps of 1 to `max_num_tokens` tokens
/// and decodes of 1 to `max_num_seqs` sequences (`None`: no decode list), that minimise the worst
/// padding share of any step. No lists with as many graphs have a smaller one.
///
/// # Errors
/// [`PlannerError::Setting`] and [`PlannerError::TooFewGraphs`].
pub fn bounded_lists(
    graphs: usize,
    max_num_tokens: u32,
    max_num_seqs: Option<u32>,
) -> Result<BoundedLists, PlannerError> {
    PlannerError::check_graphs(graphs, MAX_GRAPHS)?;
    let least = 1 + usize::from(max_num_seqs.is_some());
    if graphs < least {
        return Err(PlannerError::TooFewGraphs { given: graphs, least });
    }
    let most = u64::from(MAX_STEP_TOKENS);
    PlannerError::check_limits([
        ("--max-num-tokens", u64::from(max_num_tokens), most),
        ("--max-num-seqs", max_num_seqs.map_or(1, u64::from), most),
    ])?;
    let lists = |bound: u64| {
        let tokens = sparsest_list(max_num_tokens, bound, graphs)?;
        let left = graphs - tokens.len();
        let decode = max_num_seqs.map_or(Some(Vec::new()), |s| sparsest_list(s, bound, left))?;
        Some(CaptureSizes { capture_num_tokens: tokens, decode_batch_sizes: decode })
    };
    let (mut low, mut high) = (0_u64, 1 << RESOLUTION);
    let mut sizes = lists(high).unwrap_or_default();
    while low < high {
        let middle = low + (high - low) / 2;
        match lists(middle) {
            Some(found) => {
                high = middle;
                sizes = found;
            }
            None => low = middle + 1,
        }
    }
    let of_tokens = worst_padding(&sizes.capture_num_tokens);
    let of_decode = worst_padding(&sizes.decode_batch_sizes);
    let worst = if less(of_tokens, of_decode) { of_decode } else { of_tokens };
    Ok(BoundedLists { sizes, worst })
}

/// The list of fewest sizes whose worst padding share is at most `bound` / 2^50, or `None` when it
/// has more than `most`.
fn sparsest_list(maximum: u32, bound: u64, most: usize) -> Option<Vec<u32>> {
    let mut sizes = Vec::new();
    let mut size = maximum;
    while size > 0 {
        if sizes.len() == most {
            return None;
        }
        sizes.push(size);
        let allowed = (u128::from(bound) * u128::from(size)) >> RESOLUTION;
        let allowed = u32::try_from(allowed).unwrap_or(u32::MAX);
        size = (size - 1).saturating_sub(allowed);
    }
    sizes.reverse();
    Some(sizes)
}

/// The worst padding of an ascending list, as padding rows and the size they are in.
fn worst_padding(sizes: &[u32]) -> (u32, u32) {
    let mut worst = (0, 1);
    let mut below = 0;
    for size in sizes {
        let here = (size - below - 1, *size);
        if less(worst, here) {
            worst = here;
        }
        below = *size;
    }
    worst
}

fn less(a: (u32, u32), b: (u32, u32)) -> bool {
    u64::from(a.0) * u64::from(b.1) < u64::from(b.0) * u64::from(a.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least worst share over all lists of at most `graphs` sizes that end at `maximum`.
    fn brute_force(graphs: usize, maximum: u32) -> (u32, u32) {
        let mut best = (1, 1);
        for mask in 0..1_u32 << (maximum - 1) {
            if mask.count_ones() as usize + 1 > graphs {
                continue;
            }
            let mut sizes: Vec<u32> =
                (1..maximum).filter(|size| mask & (1 << (size - 1)) != 0).collect();
            sizes.push(maximum);
            let worst = worst_padding(&sizes);
            if less(worst, best) {
                best = worst;
            }
        }
        best
    }

    #[test]
    fn equals_brute_force() {
        for maximum in 1..=14 {
            for graphs in 1..=maximum as usize + 1 {
                let found = bounded_lists(graphs, maximum, None).unwrap();
                let best = brute_force(graphs, maximum);
                assert!(!less(best, found.worst) && !less(found.worst, best), "{graphs} {maximum}");
                assert!(found.sizes.capture_num_tokens.len() <= graphs);
                assert_eq!(found.sizes.capture_num_tokens.last(), Some(&maximum));
            }
        }
    }

    #[test]
    fn both_lists_share_the_graphs() {
        let found = bounded_lists(40, 8192, Some(256)).unwrap();
        assert!(found.sizes.graphs(1) <= 40);
        let split = (1..40).map(|tokens| {
            let a = bounded_lists(tokens, 8192, None).unwrap().worst;
            let b = bounded_lists(40 - tokens, 256, None).unwrap().worst;
            if less(a, b) { b } else { a }
        });
        for worst in split {
            assert!(!less(worst, found.worst), "{worst:?} {found:?}");
        }
    }

    #[test]
    fn many_graphs_leave_no_padding_and_one_leaves_all() {
        assert_eq!(bounded_lists(16, 16, None).unwrap().worst_share(), 0.0);
        assert_eq!(bounded_lists(1, 4096, None).unwrap().worst, (4095, 4096));
        assert_eq!(
            bounded_lists(MAX_GRAPHS, MAX_STEP_TOKENS, None).unwrap().sizes.graphs(1),
            MAX_GRAPHS
        );
    }

    #[test]
    fn limits_are_checked() {
        assert!(matches!(bounded_lists(0, 8, None), Err(PlannerError::Setting { .. })));
        assert!(matches!(bounded_lists(1, 8, Some(8)), Err(PlannerError::TooFewGraphs { .. })));
        assert!(matches!(bounded_lists(4, 0, None), Err(PlannerError::Setting { .. })));
        assert!(matches!(bounded_lists(4, u32::MAX, None), Err(PlannerError::Setting { .. })));
    }
}
