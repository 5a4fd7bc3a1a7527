//! Attention and means within segments in f64.

use crate::attention::reference::attend;
use crate::op::ScoreSpec;
use piecewise_ir::eval::Array;
use std::ops::Range;

/// The rows of segment `s`, held against the rows that there are.
fn rows_of(starts: &Array, lengths: &Array, s: usize, rows: usize) -> Result<Range<usize>, String> {
    let (start, length) = (starts.data[s], lengths.data[s]);
    if start < 0.0 || length < 0.0 || start + length > rows as f64 {
        return Err(format!("segment {s} has rows {start}.. and {length} of them, of {rows}"));
    }
    Ok(start as usize..(start + length) as usize)
}

pub(super) fn attention(operands: &[Array], spec: ScoreSpec) -> Result<Vec<Array>, String> {
    let [q, k, v, query_starts, query_lengths, key_starts, key_lengths] = operands else {
        return Err(format!("takes 7 operands, not {}", operands.len()));
    };
    let mut out = Array::zeros(q.dtype, vec![q.shape[0], q.shape[1] * v.shape[2]]);
    for segment in 0..query_starts.data.len() {
        let rows = rows_of(query_starts, query_lengths, segment, q.shape[0])?;
        let keys = rows_of(key_starts, key_lengths, segment, k.shape[0])?;
        attend([q, k, v], None, spec, rows, keys.len(), |p| keys.start + p, &mut out);
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
        let rows = rows_of(starts, lengths, segment, x.shape[0])?;
        for row in rows.clone() {
            for column in 0..width {
                let share = x.data[row * width + column] / rows.len() as f64;
                out.data[segment * width + column] += share;
            }
        }
    }
    Ok(vec![out])
}
