//! What attention makes of scores, wherever its keys lie.

/// What the attributes of a call say of scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ScoreSpec {
    pub(crate) scale: f64,
    pub(crate) causal: bool,
    pub(crate) window: Option<u32>,
}

impl ScoreSpec {
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
