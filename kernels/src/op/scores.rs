//! What attention makes of scores, wherever its keys lie.

/// What the attributes of a call say of scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ScoreSpec {
    pub(crate) scale: f64,
    pub(crate) causal: bool,
    /// The farthest position that a query sees, on either side of its own.
    pub(crate) window: Option<u32>,
    /// Scaled scores are `softcap * tanh(score / softcap)` before they are masked.
    pub(crate) softcap: Option<f64>,
}

impl ScoreSpec {
    /// A score by the product of a query and a key.
    pub(crate) fn score(self, product: f64) -> f64 {
        let score = self.scale * product;
        self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    }

    /// The keys that query `j` of `queries` sees among `keys`.
    pub(crate) fn seen(self, j: usize, queries: usize, keys: usize) -> std::ops::Range<usize> {
        let position = keys as i64 - queries as i64 + j as i64;
        let past = |last: i64| (last + 1).clamp(0, keys as i64) as usize;
        let mut seen = 0..keys;
        if self.causal {
            seen.end = past(position);
        }
        if let Some(window) = self.window {
            seen.end = seen.end.min(past(position + i64::from(window)));
            seen.start = past(position - i64::from(window) - 1).min(seen.end);
        }
        seen
    }
}
