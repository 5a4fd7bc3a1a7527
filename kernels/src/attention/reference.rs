//! Paged attention in f64, one row at a time.

use super::pages::PAGE_ROWS;
use piecewise_ir::custom::{Attr, Attrs};
use piecewise_ir::eval::Array;

pub(super) fn paged_attention(operands: &[Array], attrs: &Attrs) -> Result<Vec<Array>, String> {
    let [q, k, v, block_table, lengths, starts, query_lengths] = operands else {
        return Err(format!("takes 7 operands, not {}", operands.len()));
    };
    let (Some(Attr::Float(scale)), Some(Attr::Bool(causal))) =
        (attrs.get("scale"), attrs.get("causal"))
    else {
        return Err("needs the attributes scale and causal".to_owned());
    };
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let (kv_heads, value_dim) = (k.shape[1], v.shape[2]);
    let group = heads / kv_heads.max(1);
    let mut out = Array::zeros(q.dtype, vec![q.shape[0], heads * value_dim]);
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
        for row in 0..rows {
            let seen = if *causal { length - rows + row + 1 } else { length };
            for head in 0..heads {
                let at = (start + row) * heads + head;
                let slots = (0..seen).map(|p| slot_of(p) * kv_heads + head / group);
                let out = &mut out.data[at * value_dim..][..value_dim];
                attend(&q.data[at * dim..][..dim], [&k.data, &v.data], *scale, slots, out);
            }
        }
    }
    Ok(vec![out])
}

/// A row of a head: the values at `rows`, each by its share of the softmax of the products of
/// `query` with the keys there, are added to `out`.
pub(crate) fn attend(
    query: &[f64],
    [keys, values]: [&[f64]; 2],
    scale: f64,
    rows: impl Iterator<Item = usize> + Clone,
    out: &mut [f64],
) {
    let score = |row: usize| {
        let key = &keys[row * query.len()..][..query.len()];
        scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()
    };
    let scores: Vec<f64> = rows.clone().map(score).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
    for (row, score) in rows.zip(scores) {
        let share = (score - top).exp() / total;
        let value = &values[row * out.len()..][..out.len()];
        for (sum, x) in out.iter_mut().zip(value) {
            *sum += share * x;
        }
    }
}
