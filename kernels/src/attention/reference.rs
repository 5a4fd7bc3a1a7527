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
                let query = &q.data[((start + row) * heads + head) * dim..][..dim];
                let kv_head = head / group;
                let scores: Vec<f64> = (0..seen)
                    .map(|p| {
                        let key = &k.data[(slot_of(p) * kv_heads + kv_head) * dim..][..dim];
                        scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()
                    })
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                let target =
                    &mut out.data[((start + row) * heads + head) * value_dim..][..value_dim];
                for (p, score) in scores.iter().enumerate() {
                    let share = (score - top).exp() / total;
                    let value =
                        &v.data[(slot_of(p) * kv_heads + kv_head) * value_dim..][..value_dim];
                    for (sum, x) in target.iter_mut().zip(value) {
                        *sum += share * x;
                    }
                }
            }
        }
    }
    Ok(vec![out])
}
