//! Attention in f64, one row at a time.

use crate::inputs::PAGE_ROWS;
use crate::op::ScoreSpec;
use piecewise_ir::eval::Array;
use std::ops::Range;

pub(super) fn paged_attention(operands: &[Array], spec: ScoreSpec) -> Result<Vec<Array>, String> {
    let [q, k, v, block_table, lengths, starts, query_lengths, sinks @ ..] = operands else {
        return Err(format!("takes 7 operands or 8, not {}", operands.len()));
    };
    let sinks = sinks.first();
    let mut out = Array::zeros(q.dtype, vec![q.shape[0], q.shape[1] * v.shape[2]]);
    for sequence in 0..lengths.data.len() {
        let length = lengths.data[sequence] as usize;
        let rows = query_lengths.data[sequence] as usize;
        let start = starts.data[sequence] as usize;
        let pages = block_table.shape[1];
        if length > pages * PAGE_ROWS as usize || start + rows > q.shape[0] || rows > length {
            return Err(format!("sequence {sequence} does not fit its rows or its block table"));
        }
        let slot_of = |position: usize| {
            let page = block_table.data[sequence * pages + position / PAGE_ROWS as usize] as usize;
            page * PAGE_ROWS as usize + position % PAGE_ROWS as usize
        };
        attend([q, k, v], sinks, spec, start..start + rows, length, slot_of, &mut out);
    }
    Ok(vec![out])
}

/// The `rows` of q over `keys` keys, each of which is in the row of k and v that `row_of` says: to
/// `out` each adds the values that it sees, by their shares of the softmax of its scores and of the
/// sink of its head.
pub(crate) fn attend(
    [q, k, v]: [&Array; 3],
    sinks: Option<&Array>,
    spec: ScoreSpec,
    rows: Range<usize>,
    keys: usize,
    row_of: impl Fn(usize) -> usize,
    out: &mut Array,
) {
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let (kv_heads, value_dim) = (k.shape[1], v.shape[2]);
    let group = heads / kv_heads.max(1);
    for (j, row) in rows.clone().enumerate() {
        let seen = spec.seen(j, rows.len(), keys);
        for head in 0..heads {
            let at = row * heads + head;
            let query = &q.data[at * dim..][..dim];
            let slots = seen.clone().map(|p| row_of(p) * kv_heads + head / group);
            let score = |slot: usize| {
                let key = &k.data[slot * dim..][..dim];
                spec.score(query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>())
            };
            let scores: Vec<f64> = slots.clone().map(score).collect();
            let sink = sinks.map(|sinks| sinks.data[head]);
            let all = || scores.iter().copied().chain(sink);
            let top = all().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = all().map(|s| (s - top).exp()).sum();
            for (slot, score) in slots.zip(scores) {
                let share = (score - top).exp() / total;
                let value = &v.data[slot * value_dim..][..value_dim];
                for (sum, x) in out.data[at * value_dim..][..value_dim].iter_mut().zip(value) {
                    *sum += share * x;
                }
            }
        }
    }
}
