//! What each further graph buys.

use serde::Serialize;

/// A point of the trade-off curve: the cheapest plan of at most so many graphs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The bound on graphs; the plan may have fewer.
    pub graphs: usize,
    /// Sizes of `capture_num_tokens` in the plan.
    pub token_sizes: usize,
    /// Sizes of `decode_batch_sizes` in the plan.
    pub decode_sizes: usize,
    /// The objective: microseconds or padding tokens over the whole log.
    pub cost: f64,
}

/// The index of the knee: the point farthest below the line from the first point to the first of
/// the lowest points, in units of the curve's own width and height; the first of equals.
pub(crate) fn knee(costs: &[u128]) -> usize {
    let Some(lowest) = costs.iter().min() else { return 0 };
    let end = costs.iter().position(|cost| cost == lowest).unwrap_or(0);
    let drop = (costs[0] - lowest) as f64;
    if end == 0 || drop <= 0.0 {
        return 0;
    }
    let mut best = (0.0, end);
    for (index, cost) in costs.iter().enumerate().take(end) {
        let along = index as f64 / end as f64;
        let down = (costs[0].saturating_sub(*cost)) as f64 / drop;
        if down - along > best.0 {
            best = (down - along, index);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_the_curve_turns() {
        assert_eq!(knee(&[100, 60, 10, 9, 8, 7, 6]), 2);
        assert_eq!(knee(&[100, 20, 19, 18]), 1);
        assert_eq!(knee(&[7]), 0);
        assert_eq!(knee(&[7, 7, 7]), 0);
        assert_eq!(knee(&[9, 6, 3, 3]), 2);
        assert_eq!(knee(&[]), 0);
    }
}
