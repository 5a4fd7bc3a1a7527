//! A function of tokens that never falls, from points.

/// The widest relative step between neighbouring points that may be interpolated.
const MAX_GAP_RATIO: u64 = 4;

/// Gaps up to this many tokens are always interpolated.
const SMALL_GAP: u64 = 64;

/// A non-decreasing function of tokens: the least-squares monotone fit of the points (pool
/// adjacent violators), linear between them and constant beyond them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonotoneCurve {
    points: Vec<(u32, u64)>,
}

impl MonotoneCurve {
    /// Fits points of (tokens, value); points of equal tokens are averaged. `None` without points.
    pub fn fit(mut points: Vec<(u32, u64)>) -> Option<Self> {
        points.sort_unstable();
        let mut merged: Vec<(u32, u128, u128)> = Vec::with_capacity(points.len());
        for (tokens, value) in points {
            match merged.last_mut() {
                Some(last) if last.0 == tokens => {
                    last.1 += u128::from(value);
                    last.2 += 1;
                }
                _ => merged.push((tokens, u128::from(value), 1)),
            }
        }
        let mut blocks: Vec<(usize, u128, u128)> = Vec::with_capacity(merged.len());
        for (_, sum, weight) in &merged {
            let mut block = (1, *sum, *weight);
            while let Some(last) = blocks.last()
                && last.1 * block.2 > block.1 * last.2
            {
                block = (last.0 + block.0, last.1 + block.1, last.2 + block.2);
                blocks.pop();
            }
            blocks.push(block);
        }
        let mut fitted = Vec::with_capacity(merged.len());
        for (length, sum, weight) in blocks {
            let value = u64::try_from(sum / weight).unwrap_or(u64::MAX);
            for _ in 0..length {
                fitted.push((merged[fitted.len()].0, value));
            }
        }
        (!fitted.is_empty()).then_some(Self { points: fitted })
    }

    /// The value at a number of tokens, rounded down.
    pub fn at(&self, tokens: u32) -> u64 {
        let after = self.points.partition_point(|point| point.0 < tokens);
        let Some(&(right, high)) = self.points.get(after) else {
            return self.points.last().map_or(0, |point| point.1);
        };
        if right == tokens || after == 0 {
            return high;
        }
        let (left, low) = self.points[after - 1];
        let share = u128::from(high - low) * u128::from(tokens - left) / u128::from(right - left);
        low + u64::try_from(share).unwrap_or(u64::MAX - low)
    }

    /// The gap that makes the curve unusable on `from..=to`, as (last point below it, first point
    /// above it or the end of the range).
    pub fn gap_within(&self, from: u32, to: u32) -> Option<(Option<u32>, u32)> {
        let first = self.points.first().map_or(u32::MAX, |point| point.0);
        if first > to || too_wide(from, first) {
            return Some((None, from));
        }
        for pair in self.points.windows(2) {
            let (left, right) = (pair[0].0, pair[1].0);
            if right > from && left < to && too_wide(left, right) {
                return Some((Some(left), right));
            }
        }
        let last = self.points.last().map_or(0, |point| point.0);
        (last < to).then_some((Some(last), to))
    }
}

fn too_wide(left: u32, right: u32) -> bool {
    let (left, right) = (u64::from(left), u64::from(right));
    right > left * MAX_GAP_RATIO && right - left > SMALL_GAP
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn interpolates_linearly_and_is_constant_outside() {
        let curve = MonotoneCurve::fit(vec![(10, 100), (20, 200), (40, 200)]).unwrap();
        let at: Vec<u64> = [1, 10, 15, 19, 20, 30, 40, 99].map(|tokens| curve.at(tokens)).to_vec();
        assert_eq!(at, [100, 100, 150, 190, 200, 200, 200, 200]);
        assert_eq!(MonotoneCurve::fit(Vec::new()), None);
    }

    #[test]
    fn a_dip_is_pooled_to_its_mean() {
        let curve = MonotoneCurve::fit(vec![(1, 10), (2, 40), (3, 20), (4, 50)]).unwrap();
        assert_eq!(curve.points, [(1, 10), (2, 30), (3, 30), (4, 50)]);
    }

    #[test]
    fn gaps_are_found_inside_the_range_only() {
        let curve = MonotoneCurve::fit(vec![(1, 1), (64, 2), (512, 3), (2048, 4)]).unwrap();
        assert_eq!(curve.gap_within(512, 2048), None);
        assert_eq!(curve.gap_within(1, 2048), Some((Some(64), 512)));
        assert_eq!(curve.gap_within(600, 4096), Some((Some(2048), 4096)));
        let late = MonotoneCurve::fit(vec![(512, 3)]).unwrap();
        assert_eq!(late.gap_within(1, 512), Some((None, 1)));
    }

    proptest! {
        #[test]
        fn never_falls_and_stays_within_the_points(
            points in proptest::collection::vec((1_u32..2000, 0_u64..1_000_000), 1..40),
        ) {
            let curve = MonotoneCurve::fit(points.clone()).unwrap();
            let low = points.iter().map(|point| point.1).min().unwrap();
            let high = points.iter().map(|point| point.1).max().unwrap();
            let mut previous = 0;
            for tokens in 0..2001 {
                let value = curve.at(tokens);
                prop_assert!(value >= previous && value >= low && value <= high);
                previous = value;
            }
        }
    }
}
