//! Index remaps: the same elements at other places.

use super::Array;

/// Row-major strides of `shape`, in elements.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Calls `visit` for every index of `shape` in row-major order with the flat index and the offset
/// that `strides` give it.
pub(super) fn walk(shape: &[usize], strides: &[usize], mut visit: impl FnMut(usize, usize)) {
    let total: usize = shape.iter().product();
    let mut index = vec![0usize; shape.len()];
    let mut offset = 0usize;
    for flat in 0..total {
        visit(flat, offset);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
}

/// The element at each index of `shape` is the one of `from` at the offset by `strides`.
fn remap(from: &Array, shape: Vec<usize>, strides: &[usize]) -> Array {
    let mut data = Vec::with_capacity(shape.iter().product());
    walk(&shape, strides, |_, offset| data.push(from.data[offset]));
    Array { dtype: from.dtype, shape, data }
}

pub(super) fn broadcast(from: &Array, shape: Vec<usize>) -> Array {
    let outer = shape.len() - from.shape.len();
    let mut by_axis = vec![0; shape.len()];
    for (axis, stride) in strides(&from.shape).into_iter().enumerate() {
        if from.shape[axis] != 1 {
            by_axis[outer + axis] = stride;
        }
    }
    remap(from, shape, &by_axis)
}

pub(super) fn permute(from: &Array, perm: &[usize]) -> Array {
    let own = strides(&from.shape);
    let shape = perm.iter().map(|&axis| from.shape[axis]).collect();
    remap(from, shape, &perm.iter().map(|&axis| own[axis]).collect::<Vec<_>>())
}

/// The extents outside and inside of `axis`, as products.
pub(super) fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

pub(super) fn slice(from: &Array, axis: usize, start: usize, shape: Vec<usize>) -> Array {
    let (outer, inner) = around(&shape, axis);
    let (extent, kept) = (from.shape[axis] * inner, shape[axis] * inner);
    let first = start * inner;
    let mut data = Vec::with_capacity(outer * kept);
    for o in 0..outer {
        data.extend_from_slice(&from.data[o * extent + first..][..kept]);
    }
    Array { dtype: from.dtype, shape, data }
}

pub(super) fn concat(parts: &[&Array], axis: usize, shape: Vec<usize>) -> Array {
    let (outer, inner) = around(&shape, axis);
    let mut data = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for part in parts {
            let run = part.shape[axis] * inner;
            data.extend_from_slice(&part.data[o * run..][..run]);
        }
    }
    Array { dtype: parts[0].dtype, shape, data }
}

/// For each element of `shape`, its index along `axis`.
pub(super) fn iota(shape: &[usize], axis: usize) -> Vec<f64> {
    let (_, inner) = around(shape, axis);
    let total: usize = shape.iter().product();
    (0..total).map(|flat| (flat / inner % shape[axis]) as f64).collect()
}
