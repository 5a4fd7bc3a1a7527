//! C++ for dtypes and constants.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use piecewise_ir::dtype::DType;

/// The type of an element in memory.
pub(super) fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::F32 => "float",
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => lane(dtype),
        // Bytes; no kernel of rows has them.
        DType::E4M3 | DType::I4 => "u8",
    }
}

/// The type of an element in arithmetic.
pub(super) fn lane(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => "float",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => "u8",
    }
}

/// Definitions of macros, a line each.
pub(super) fn defines<'a, T: std::fmt::Display>(
    values: impl IntoIterator<Item = (&'a str, T)>,
) -> String {
    values.into_iter().map(|(name, value)| format!("#define {name} {value}\n")).collect()
}

/// An `f32` constant, to the bit.
pub(super) fn float(x: f32) -> String {
    if !x.is_finite() || (x == 0.0 && x.is_sign_negative()) {
        return format!("__uint_as_float({:#010x}u)", x.to_bits());
    }
    let text = format!("{x:?}");
    format!("{text}f")
}
