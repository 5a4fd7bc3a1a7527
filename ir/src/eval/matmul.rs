//! Matrix products.

use super::Array;
use super::layout::permute;
use crate::dtype::DType;
use std::borrow::Cow;

/// `a` with its last two axes swapped.
fn transposed(a: &Array) -> Array {
    let mut perm: Vec<usize> = (0..a.shape.len()).collect();
    perm.swap(a.shape.len() - 1, a.shape.len() - 2);
    permute(a, &perm)
}

/// `[.., m, k] x [n, k]` transposed, where codes have the scales, and zeros, of their blocks.
pub(super) fn scaled_matmul(
    operands: &[&Array],
    block: [u64; 2],
    dtype: DType,
    shape: Vec<usize>,
) -> Array {
    let [x, codes, scales, zeros @ ..] = operands else {
        unreachable!("a verified `scaled_matmul` has rows, codes and scales")
    };
    let (k, across) = (codes.shape[1], scales.shape[1]);
    let [rows, columns] = block.map(|extent| extent as usize);
    let weights = codes.data.iter().enumerate().map(|(i, code)| {
        let at = i / k / rows * across + i % k / columns;
        let zero = zeros.first().map_or(0.0, |zeros| zeros.data[at]);
        (code - zero) * scales.data[at]
    });
    let weights = Array { dtype, shape: codes.shape.clone(), data: weights.collect() };
    matmul(x, false, &weights, true, dtype, shape)
}

/// `[..b, m, k] x [..b, k, n]` or `[.., m, k] x [k, n]`, summed in f64 in the order of `k`.
pub(super) fn matmul(
    lhs: &Array,
    transpose_lhs: bool,
    rhs: &Array,
    transpose_rhs: bool,
    dtype: DType,
    shape: Vec<usize>,
) -> Array {
    let lhs = if transpose_lhs { Cow::Owned(transposed(lhs)) } else { Cow::Borrowed(lhs) };
    let rhs = if transpose_rhs { Cow::Borrowed(rhs) } else { Cow::Owned(transposed(rhs)) };
    let rank = lhs.shape.len();
    let (m, k) = (lhs.shape[rank - 2], lhs.shape[rank - 1]);
    let n = rhs.shape[rhs.shape.len() - 2];
    let batch: usize = lhs.shape[..rank - 2].iter().product();
    let batched_rhs = rhs.shape.len() > 2;
    let mut data = Vec::with_capacity(batch * m * n);
    for b in 0..batch {
        let right = if batched_rhs { &rhs.data[b * n * k..][..n * k] } else { &rhs.data[..] };
        for i in 0..m {
            let row = &lhs.data[(b * m + i) * k..][..k];
            for j in 0..n {
                let column = &right[j * k..][..k];
                data.push(row.iter().zip(column).map(|(x, y)| x * y).sum());
            }
        }
    }
    Array { dtype, shape, data }
}
