//! Reductions, argmax and top-k.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::Array;
use super::elementwise::{integer, wrap};
use super::layout::{around, strides, walk};
use crate::dtype::DType;
use crate::op::ReduceOp;
use std::cmp::Ordering;

/// `a` over `axes`, which stay with extent 1. The largest and the smallest of NaNs alone is NaN.
pub(super) fn reduce(op: ReduceOp, a: &Array, axes: &[usize]) -> Array {
    let mut shape = a.shape.clone();
    for &axis in axes {
        shape[axis] = 1;
    }
    let mut by_axis = strides(&shape);
    for &axis in axes {
        by_axis[axis] = 0;
    }
    let extent: usize = axes.iter().map(|&axis| a.shape[axis]).product();
    let n = shape.iter().product();
    let data = match op {
        ReduceOp::Sum if a.dtype.is_int() => {
            let mut sums = vec![0i128; n];
            walk(&a.shape, &by_axis, |flat, to| sums[to] += integer(a.data[flat]));
            sums.into_iter().map(|sum| wrap(a.dtype, sum)).collect()
        }
        ReduceOp::Sum => fold(a, &by_axis, vec![0.0; n], |sum, x| sum + x),
        ReduceOp::Mean => {
            let sums = fold(a, &by_axis, vec![0.0; n], |sum, x| sum + x);
            sums.into_iter().map(|sum| sum / extent as f64).collect()
        }
        ReduceOp::Max => fold(a, &by_axis, vec![identity(a.dtype, extent, true); n], f64::max),
        ReduceOp::Min => fold(a, &by_axis, vec![identity(a.dtype, extent, false); n], f64::min),
    };
    Array { dtype: a.dtype, shape, data }
}

fn fold(a: &Array, by_axis: &[usize], mut to: Vec<f64>, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    walk(&a.shape, by_axis, |flat, at| to[at] = f(to[at], a.data[flat]));
    to
}

/// What the largest (or smallest) element starts from: NaN, which loses to every number; over
/// nothing, the value that loses to every other of the dtype.
fn identity(dtype: DType, extent: usize, largest: bool) -> f64 {
    if extent > 0 {
        return f64::NAN;
    }
    let infinity = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
    if dtype.is_float() { infinity } else { dtype.round(infinity) }
}

/// Descending, NaNs last.
fn descending(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (a_nan, b_nan) => a_nan.cmp(&b_nan),
    }
}

pub(super) fn arg_max(a: &Array, axis: usize) -> Array {
    let (_, indices) = top_k(a, axis, 1.min(a.shape[axis]));
    let mut shape = a.shape.clone();
    shape.remove(axis);
    let n = shape.iter().product();
    // Over nothing there is no index; 0 is as good as any.
    let data = if a.shape[axis] == 0 { vec![0.0; n] } else { indices.data };
    Array { dtype: DType::I32, shape, data }
}

/// The `k` largest elements along `axis` in descending order, and their indices.
pub(super) fn top_k(a: &Array, axis: usize, k: usize) -> (Array, Array) {
    let (outer, inner) = around(&a.shape, axis);
    let extent = a.shape[axis];
    let mut shape = a.shape.clone();
    shape[axis] = k;
    let mut values = Array::zeros(a.dtype, shape.clone());
    let mut indices = Array::zeros(DType::I32, shape);
    for o in 0..outer {
        for i in 0..inner {
            let at = |j: usize| a.data[(o * extent + j) * inner + i];
            let mut order: Vec<usize> = (0..extent).collect();
            // Stable, so the lowest index wins a tie.
            order.sort_by(|&x, &y| descending(at(x), at(y)));
            for (rank, &j) in order[..k].iter().enumerate() {
                let to = (o * k + rank) * inner + i;
                values.data[to] = at(j);
                indices.data[to] = j as f64;
            }
        }
    }
    (values, indices)
}
