//! Elementwise ops, one element at a time.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use crate::dtype::DType;
use crate::op::{BinaryOp, CompareOp, UnaryOp};

/// The integer `x` wrapped into `dtype`.
pub(super) fn wrap(dtype: DType, x: i128) -> f64 {
    match dtype {
        DType::I32 => f64::from(x as i32),
        DType::I64 => x as i64 as f64,
        DType::U8 => f64::from(x as u8),
        DType::Bool | DType::F32 | DType::F16 | DType::BF16 => x as f64,
        DType::E4M3 | DType::I4 => unreachable!("no arithmetic takes {dtype}"),
    }
}

/// The integer that an element of an integer dtype is.
pub(super) fn integer(x: f64) -> i128 {
    i128::from(x as i64)
}

/// As the op table says.
pub(super) fn unary(op: UnaryOp, dtype: DType, x: f64) -> f64 {
    match op.in_integers().filter(|_| dtype.is_int()) {
        Some(of) => wrap(dtype, of(integer(x))),
        None => op.in_f64()(x),
    }
}

/// As the op table says.
pub(super) fn binary(op: BinaryOp, dtype: DType, a: f64, b: f64) -> f64 {
    match op.in_integers().filter(|_| dtype.is_int()) {
        Some(of) => wrap(dtype, of(integer(a), integer(b))),
        None => op.in_f64()(a, b),
    }
}

/// As the op table says.
pub(super) fn compare(op: CompareOp, a: f64, b: f64) -> f64 {
    f64::from(op.holds(a, b))
}
