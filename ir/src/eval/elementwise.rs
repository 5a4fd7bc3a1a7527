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
    }
}

/// The integer that an element of an integer dtype is.
pub(super) fn integer(x: f64) -> i128 {
    i128::from(x as i64)
}

fn truth(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

pub(super) fn unary(op: UnaryOp, dtype: DType, x: f64) -> f64 {
    match op {
        UnaryOp::Neg if dtype.is_int() => wrap(dtype, -integer(x)),
        UnaryOp::Neg => -x,
        UnaryOp::Abs if dtype.is_int() => wrap(dtype, integer(x).abs()),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh => x.tanh(),
        // The rational approximations of FreeBSD's msun s_erf.c, within 1 ulp.
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Not => truth(x == 0.0),
    }
}

pub(super) fn binary(op: BinaryOp, dtype: DType, a: f64, b: f64) -> f64 {
    let exact = |of: fn(i128, i128) -> i128| wrap(dtype, of(integer(a), integer(b)));
    match (op, dtype.is_int()) {
        (BinaryOp::Add, true) => exact(|a, b| a + b),
        (BinaryOp::Sub, true) => exact(|a, b| a - b),
        (BinaryOp::Mul, true) => exact(|a, b| a * b),
        (BinaryOp::Div, true) => exact(|a, b| if b == 0 { 0 } else { a / b }),
        (BinaryOp::Add, false) => a + b,
        (BinaryOp::Sub, false) => a - b,
        (BinaryOp::Mul, false) => a * b,
        (BinaryOp::Div, false) => a / b,
        // `f64::max` and `min` already let a NaN lose, and integers are exact.
        (BinaryOp::Max, _) => a.max(b),
        (BinaryOp::Min, _) => a.min(b),
        (BinaryOp::And, _) => truth(a != 0.0 && b != 0.0),
        (BinaryOp::Or, _) => truth(a != 0.0 || b != 0.0),
    }
}

pub(super) fn compare(op: CompareOp, a: f64, b: f64) -> f64 {
    truth(match op {
        CompareOp::Eq => a == b,
        CompareOp::Ne => a != b,
        CompareOp::Lt => a < b,
        CompareOp::Le => a <= b,
        CompareOp::Gt => a > b,
        CompareOp::Ge => a >= b,
    })
}
