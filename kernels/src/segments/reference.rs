//! Attention and means within segments in f64.

use super::attention::SegmentSpec;
use crate::attention::reference::attend;
use piecewise_ir::eval::Array;

/// The rows of segment `s`, held against the rows that there are.
fn rows_of(
    starts: &Array,
    lengths: &Array,
    s: usize,
    rows: usize,
) -> Result<(usize, usize), String> {
    let (start, length) = (starts.data[s], lengths.data[s]);
    if start < 0.0 || length < 0.0 || start + length > rows as f64 {
        return Err(format!("segment {s} has rows {start}.. and {length} of them, of {rows}"));
    }
    Ok((start as usize, length as usize))
}

pub(super) fn attention(operands: &[Array], spec: SegmentSpec) -> Result<Vec<Array>, String> {
    let [q, k, v, query_starts, query_lengths, key_starts, key_lengths] = operands else {
        return Err(format!("takes 7 operands, not {}", operands.len()));
    };
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let (kv_heads, value_dim) = (k.shape[1], v.shape[2]);
    let group = heads / kv_heads.max(1);
    let mut out = Array::zeros(q.dtype, vec![q.shape[0], heads * value_dim]);
    for segment in 0..query_starts.data.len() {
        let (first_row, queries) = rows_of(query_starts, query_lengths, segment, q.shape[0])?;
        let (first_key, keys) = rows_of(key_starts, key_lengths, segment, k.shape[0])?;
        for row in 0..queries {
            let seen = spec.seen(row, queries, keys);
            for head in 0..heads {
                let at = (first_row + row) * heads + head;
                let rows = seen.clone().map(|p| (first_key + p) * kv_heads + head / group);
                let out = &mut out.data[at * value_dim..][..value_dim];
                attend(&q.data[at * dim..][..dim], [&k.data, &v.data], spec.scale, rows, out);
            }
        }
    }
    Ok(vec![out])
}

pub(super) fn mean(operands: &[Array]) -> Result<Vec<Array>, String> {
    let [x, starts, lengths] = operands else {
        return Err(format!("takes 3 operands, not {}", operands.len()));
    };
    let width = x.shape[1];
    let mut out = Array::zeros(x.dtype, vec![starts.data.len(), width]);
    for segment in 0..starts.data.len() {
        let (start, length) = rows_of(starts, lengths, segment, x.shape[0])?;
        for row in start..start + length {
            for column in 0..width {
                out.data[segment * width + column] += x.data[row * width + column] / length as f64;
            }
        }
    }
    Ok(vec![out])
}
