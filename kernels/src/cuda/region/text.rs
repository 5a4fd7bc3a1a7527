//! C++ for dtypes, constants and elementwise ops.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use crate::cuda::text::{float, lane};
use crate::lower::{LowerError, fail};
use half::{bf16, f16};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::{Op, ReduceOp};

/// A value in arithmetic, rounded to its dtype.
pub(in crate::cuda) fn rounded(dtype: DType, text: &str) -> String {
    match dtype {
        DType::BF16 => format!("round_bf16({text})"),
        DType::F16 => format!("round_f16({text})"),
        DType::F32 | DType::I32 | DType::I64 | DType::U8 | DType::Bool => text.to_owned(),
        // No kernel of rows has them.
        DType::E4M3 | DType::I4 => text.to_owned(),
    }
}

/// The constant of `dtype` in the first bytes of `bytes`, in arithmetic.
pub(in crate::cuda) fn constant(dtype: DType, bytes: &[u8]) -> Result<String, LowerError> {
    let short = || LowerError("a constant that is shorter than its dtype".to_owned());
    let head = |n: usize| bytes.get(..n).ok_or_else(short);
    let bits16 = || head(2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    let bits32 = || head(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    Ok(match dtype {
        DType::F32 => float(f32::from_bits(bits32()?)),
        DType::BF16 => float(bf16::from_bits(bits16()?).to_f32()),
        DType::F16 => float(f16::from_bits(bits16()?).to_f32()),
        DType::I32 => format!("(i32){:#x}u", bits32()?),
        DType::I64 => {
            let all: [u8; 8] = head(8)?.try_into().map_err(|_| short())?;
            format!("(i64){:#x}ull", u64::from_ne_bytes(all))
        }
        DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => format!("(u8){}", head(1)?[0]),
    })
}

/// The bits of the elements in `bytes` as the initializers of storage of `dtype`.
pub(super) fn initializers(
    dtype: DType,
    bytes: &[u8],
    elements: usize,
) -> Result<String, LowerError> {
    let size = dtype.size();
    let mut list = Vec::with_capacity(elements);
    for i in 0..elements {
        let Some(bytes) = bytes.get(i * size..(i + 1) * size) else {
            return fail("a constant that is shorter than its place");
        };
        let bits = bytes.iter().rev().fold(0u64, |bits, b| bits << 8 | u64::from(*b));
        list.push(match dtype {
            DType::BF16 | DType::F16 => format!("{{{bits:#x}}}"),
            // Constant expressions only: bits of an initializer can't be reinterpreted.
            DType::F32 | DType::I32 => format!("(i32){bits:#x}u"),
            DType::I64 => format!("(i64){bits:#x}ull"),
            DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => bits.to_string(),
        });
    }
    let lines: Vec<String> =
        list.chunks(16).map(|line| format!("    {}", line.join(", "))).collect();
    Ok(lines.join(",\n"))
}

/// The value of an elementwise op on operands of `from` (the condition of a select aside), or of an
/// iota at the index that its operand is, rounded to `to`.
pub(in crate::cuda) fn element(
    op: &Op,
    from: DType,
    to: DType,
    operands: &[&str],
) -> Result<String, LowerError> {
    let unfit = || {
        let (name, count) = (op.mnemonic(), operands.len());
        fail(format!("`{name}` of {count} operands of {from} is no element of {to}"))
    };
    Ok(match op {
        Op::Unary(op) if op.takes(from) => {
            let &[a] = operands else { return unfit() };
            let value = op.cuda(from).replace("{a}", a);
            if op.is_exact() { value } else { rounded(to, &value) }
        }
        Op::Binary(op) if op.takes(from) => {
            let &[a, b] = operands else { return unfit() };
            let (before, after) = op.cuda(from).split_once("{b}").unwrap_or_default();
            let value = format!("{}{b}{after}", before.replace("{a}", a));
            if op.is_exact() { value } else { rounded(to, &value) }
        }
        Op::Compare(op) => {
            let &[a, b] = operands else { return unfit() };
            format!("(u8)({a} {} {b})", op.sign())
        }
        Op::Select => {
            let &[c, a, b] = operands else { return unfit() };
            format!("{c} != 0 ? {a} : {b}")
        }
        Op::Cast | Op::Iota { .. } => {
            let &[a] = operands else { return unfit() };
            cast(from, to, a)
        }
        // A remap that is computed as it is.
        Op::Broadcast | Op::Reshape | Op::Permute { .. } | Op::Slice { .. } => {
            let &[a] = operands else { return unfit() };
            a.to_owned()
        }
        Op::Unary(_) | Op::Binary(_) | Op::Concat { .. } | Op::Literal(_) => return unfit(),
        Op::Reduce { .. } | Op::ArgMax { .. } | Op::TopK { .. } => return unfit(),
        Op::MatMul { .. } | Op::ScaledMatMul { .. } => return unfit(),
        Op::Gather | Op::Scatter | Op::Region(_) | Op::Custom(_) => return unfit(),
    })
}

/// A value of dtype `from` in dtype `to`.
fn cast(from: DType, to: DType, a: &str) -> String {
    match (from, to) {
        (from, to) if from == to => a.to_owned(),
        (DType::F32 | DType::BF16 | DType::F16, DType::Bool) => format!("(u8)({a} != 0.0f)"),
        (DType::I32 | DType::I64 | DType::U8 | DType::Bool, DType::Bool) => {
            format!("(u8)({a} != 0)")
        }
        (DType::F32 | DType::BF16 | DType::F16, DType::F32 | DType::BF16 | DType::F16) => {
            rounded(to, a)
        }
        (DType::F32 | DType::BF16 | DType::F16, DType::I32 | DType::I64 | DType::U8) => {
            format!("{}_of({a})", lane(to))
        }
        (DType::U8 | DType::Bool, DType::U8) => a.to_owned(),
        (DType::U8 | DType::Bool, DType::F32 | DType::BF16 | DType::F16)
        | (DType::U8 | DType::Bool, DType::I32 | DType::I64) => format!("({}){a}", lane(to)),
        (DType::I32 | DType::I64, DType::F32) => format!("float_of((i64){a})"),
        (DType::I32 | DType::I64, DType::BF16) => format!("bf16_of((i64){a})"),
        (DType::I32 | DType::I64, DType::F16) => format!("f16_of((i64){a})"),
        (DType::I64, DType::I32) => format!("i32_of({a})"),
        (DType::I32, DType::I64) => format!("(i64){a}"),
        (DType::I32 | DType::I64, DType::U8) => format!("u8_of((i64){a})"),
        (DType::I32, DType::I32) | (DType::I64, DType::I64) => a.to_owned(),
        // No kernel of rows has them.
        (DType::E4M3 | DType::I4, DType::F32 | DType::BF16 | DType::F16)
        | (DType::E4M3 | DType::I4, DType::I32 | DType::I64 | DType::U8 | DType::Bool)
        | (DType::E4M3 | DType::I4, DType::E4M3 | DType::I4)
        | (DType::F32 | DType::BF16 | DType::F16, DType::E4M3 | DType::I4)
        | (DType::I32 | DType::I64 | DType::U8 | DType::Bool, DType::E4M3 | DType::I4) => {
            a.to_owned()
        }
    }
}

/// The functor, the start value and the value over nothing of a reduction.
pub(super) fn reduction(op: ReduceOp, dtype: DType) -> (&'static str, String, String) {
    let lowest = |largest: bool| -> String {
        match (dtype, largest) {
            (DType::I32, false) => "2147483647".to_owned(),
            (DType::I32, true) => "(i32)0x80000000u".to_owned(),
            (DType::I64, false) => "0x7fffffffffffffffll".to_owned(),
            (DType::I64, true) => "(i64)0x8000000000000000ull".to_owned(),
            (DType::U8 | DType::Bool | DType::E4M3 | DType::I4, false) => "(u8)255".to_owned(),
            (DType::U8 | DType::Bool | DType::E4M3 | DType::I4, true) => "(u8)0".to_owned(),
            (DType::F32 | DType::F16 | DType::BF16, false) => "INF_F".to_owned(),
            (DType::F32 | DType::F16 | DType::BF16, true) => "-INF_F".to_owned(),
        }
    };
    let float = dtype.is_float();
    match op {
        ReduceOp::Sum | ReduceOp::Mean if float => ("Sum", "0.0f".to_owned(), "0.0f".to_owned()),
        ReduceOp::Sum | ReduceOp::Mean => {
            let zero = format!("({})0", lane(dtype));
            ("Sum", zero.clone(), zero)
        }
        ReduceOp::Max if float => ("Largest", "NAN_F".to_owned(), lowest(true)),
        ReduceOp::Min if float => ("Smallest", "NAN_F".to_owned(), lowest(false)),
        ReduceOp::Max => ("Largest", lowest(true), lowest(true)),
        ReduceOp::Min => ("Smallest", lowest(false), lowest(false)),
    }
}
