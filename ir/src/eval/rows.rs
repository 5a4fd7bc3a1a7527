//! Rows of a table read and written at indices.

use super::Array;

/// Rows of `table` at `indices`, clamped; `None` if the table has no row to clamp to.
pub(super) fn gather(table: &Array, indices: &Array) -> Option<Array> {
    let width = table.row_len();
    let mut shape = indices.shape.clone();
    shape.extend_from_slice(&table.shape[1..]);
    let mut data = Vec::with_capacity(indices.data.len() * width);
    if !indices.data.is_empty() {
        let last = table.shape[0].checked_sub(1)?;
        for &index in &indices.data {
            let row = index.clamp(0.0, last as f64) as usize;
            data.extend_from_slice(&table.data[row * width..][..width]);
        }
    }
    Some(Array { dtype: table.dtype, shape, data })
}

/// Writes each row of `rows` to its slot of `state`; a slot outside writes nowhere, and of rows
/// with one slot the last stays.
pub(super) fn scatter(state: &mut Array, slots: &Array, rows: &Array) {
    let width = state.row_len();
    let extent = state.shape[0] as f64;
    for (i, &slot) in slots.data.iter().enumerate() {
        if slot >= 0.0 && slot < extent {
            let to = slot as usize * width;
            state.data[to..to + width].copy_from_slice(&rows.data[i * width..][..width]);
        }
    }
}
