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

/// A source in which each `#if NAME`, `#else`, `#endif` of these names is replaced by the lines that hold:
/// what a call does not ask for leaves no trace in its text.
pub(super) fn resolved(source: &str, names: &[(&str, bool)]) -> String {
    // Of the condition that is open: whether its lines are kept.
    let mut open: Option<bool> = None;
    let mut text = String::with_capacity(source.len());
    for line in source.split_inclusive('\n') {
        let named = line.trim_end().strip_prefix("#if ");
        let named = named.and_then(|name| names.iter().find(|(of, _)| *of == name));
        match (line.trim_end(), named, open) {
            (_, Some((_, holds)), _) => open = Some(*holds),
            ("#else", _, Some(holds)) => open = Some(!holds),
            ("#endif", _, Some(_)) => open = None,
            (_, _, Some(false)) => {}
            _ => text += line,
        }
    }
    text
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
