//! Elementwise ops on lines.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::line::{Cursor, Lane, Line, integer_to_float};
use super::transcendental;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::lower::{LINE, LINES_BYTES, MapOp};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::{BinaryOp, CompareOp, UnaryOp};

/// Buffers of one line: operands, operands spread out, and a result.
pub(super) struct Lines<T> {
    operands: [[T; LINE]; 3],
    spread: [[T; LINE]; 3],
}

/// Line buffers for every lane: the head of a worker's scratch. Any bytes are valid.
pub(super) struct AllLines {
    floats: Lines<f32>,
    longs: Lines<i64>,
    ints: Lines<i32>,
    bytes: Lines<u8>,
    results: Results,
}

/// Results on their way to memory of another dtype or stride.
struct Results {
    floats: [f32; LINE],
    longs: [i64; LINE],
    ints: [i32; LINE],
    bytes: [u8; LINE],
}

impl Lines<u8> {
    #[inline(always)]
    fn zeroed() -> Self {
        Self { operands: [[0; LINE]; 3], spread: [[0; LINE]; 3] }
    }
}

const _: () = assert!(size_of::<AllLines>() as u64 == LINES_BYTES, "programs say what they need");

#[inline(always)]
fn map1<T: Copy, O>(a: Line<'_, T>, out: &mut [O], f: impl Fn(T) -> O) {
    match a {
        Line::Each(a) => out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a)),
        Line::Same(a) => out.iter_mut().for_each(|o| *o = f(a)),
    }
}

#[inline(always)]
fn map2<T: Copy, O>(a: Line<'_, T>, b: Line<'_, T>, out: &mut [O], f: impl Fn(T, T) -> O) {
    match (a, b) {
        (Line::Each(a), Line::Each(b)) => {
            out.iter_mut().zip(a).zip(b).for_each(|((o, &a), &b)| *o = f(a, b));
        }
        (Line::Each(a), Line::Same(b)) => out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a, b)),
        (Line::Same(a), Line::Each(b)) => out.iter_mut().zip(b).for_each(|(o, &b)| *o = f(a, b)),
        (Line::Same(a), Line::Same(b)) => out.iter_mut().for_each(|o| *o = f(a, b)),
    }
}

/// What elementwise ops compute of lines of one element type.
trait Arithmetic: Lane {
    fn unary(op: UnaryOp, a: Line<'_, Self>, out: &mut [Self]);
    fn binary(op: BinaryOp, a: Line<'_, Self>, b: Line<'_, Self>, out: &mut [Self]);
}

/// The larger; a NaN loses to a number.
#[inline(always)]
pub(super) fn larger<T: Lane>(a: T, b: T) -> T {
    if b.is_nan() || a > b { a } else { b }
}

/// The smaller; a NaN loses to a number.
#[inline(always)]
pub(super) fn smaller<T: Lane>(a: T, b: T) -> T {
    if b.is_nan() || a < b { a } else { b }
}

impl Arithmetic for f32 {
    #[inline(always)]
    fn unary(op: UnaryOp, a: Line<'_, Self>, out: &mut [Self]) {
        match op {
            UnaryOp::Neg => map1(a, out, |a| -a),
            UnaryOp::Abs => map1(a, out, f32::abs),
            UnaryOp::Exp => map1(a, out, transcendental::exp),
            UnaryOp::Log => map1(a, out, f32::ln),
            UnaryOp::Log1p => map1(a, out, f32::ln_1p),
            UnaryOp::Sqrt => map1(a, out, f32::sqrt),
            UnaryOp::Rsqrt => map1(a, out, |a| 1.0 / a.sqrt()),
            UnaryOp::Sin => map1(a, out, f32::sin),
            UnaryOp::Cos => map1(a, out, f32::cos),
            UnaryOp::Tanh => map1(a, out, transcendental::tanh),
            UnaryOp::Erf => map1(a, out, transcendental::erf),
            UnaryOp::Floor => map1(a, out, f32::floor),
            // Programs are checked: it takes bools.
            UnaryOp::Not => {}
        }
    }

    #[inline(always)]
    fn binary(op: BinaryOp, a: Line<'_, Self>, b: Line<'_, Self>, out: &mut [Self]) {
        match op {
            BinaryOp::Add => map2(a, b, out, |a, b| a + b),
            BinaryOp::Sub => map2(a, b, out, |a, b| a - b),
            BinaryOp::Mul => map2(a, b, out, |a, b| a * b),
            BinaryOp::Div => map2(a, b, out, |a, b| a / b),
            BinaryOp::Max => map2(a, b, out, larger),
            BinaryOp::Min => map2(a, b, out, smaller),
            // Programs are checked: they take bools.
            BinaryOp::And | BinaryOp::Or => {}
        }
    }
}

macro_rules! integer_arithmetic {
    ($type:ty, $dtype:ident, $neg:expr, $abs:expr) => {
        impl Arithmetic for $type {
            #[inline(always)]
            fn unary(op: UnaryOp, a: Line<'_, Self>, out: &mut [Self]) {
                match op {
                    UnaryOp::Neg => map1(a, out, $neg),
                    UnaryOp::Abs => map1(a, out, $abs),
                    UnaryOp::Not => map1(a, out, |a| (a == 0) as $type),
                    // Programs are checked: what takes floats alone is the lane's of f32.
                    op => debug_assert!(!op.takes(DType::$dtype), "{op:?} of integers"),
                }
            }

            #[inline(always)]
            fn binary(op: BinaryOp, a: Line<'_, Self>, b: Line<'_, Self>, out: &mut [Self]) {
                match op {
                    BinaryOp::Add => map2(a, b, out, <$type>::wrapping_add),
                    BinaryOp::Sub => map2(a, b, out, <$type>::wrapping_sub),
                    BinaryOp::Mul => map2(a, b, out, <$type>::wrapping_mul),
                    BinaryOp::Div => {
                        map2(a, b, out, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) });
                    }
                    BinaryOp::Max => map2(a, b, out, |a, b| a.max(b)),
                    BinaryOp::Min => map2(a, b, out, |a, b| a.min(b)),
                    BinaryOp::And => map2(a, b, out, |a, b| ((a != 0) & (b != 0)) as $type),
                    BinaryOp::Or => map2(a, b, out, |a, b| ((a != 0) | (b != 0)) as $type),
                }
            }
        }
    };
}
integer_arithmetic!(i32, I32, i32::wrapping_neg, i32::wrapping_abs);
integer_arithmetic!(i64, I64, i64::wrapping_neg, i64::wrapping_abs);
integer_arithmetic!(u8, U8, u8::wrapping_neg, |a| a);

/// Computes one line of an elementwise op over operands of one dtype.
///
/// # Safety
/// All cursors' elements must be valid; nobody else may use those of `out`.
#[inline(always)]
unsafe fn same_dtype<T: Arithmetic>(
    op: MapOp,
    inputs: &[Cursor; 3],
    out: Cursor,
    n: usize,
    lines: &mut Lines<T>,
    result: &mut [T; LINE],
    flags: (&mut Lines<u8>, &mut [u8; LINE]),
) {
    let [a, b, _] = &mut lines.operands;
    match op {
        MapOp::Unary(op) => {
            // SAFETY: the caller's promise.
            unsafe {
                let a = T::load(inputs[0], n, a);
                T::store(out, n, result, |out| T::unary(op, a, out));
            }
        }
        MapOp::Binary(op) => {
            // SAFETY: the caller's promise.
            unsafe {
                let (a, b) = (T::load(inputs[0], n, a), T::load(inputs[1], n, b));
                T::store(out, n, result, |out| T::binary(op, a, b, out));
            }
        }
        MapOp::Compare(op) => {
            // SAFETY: the caller's promise; the result is bool.
            unsafe {
                let (a, b) = (T::load(inputs[0], n, a), T::load(inputs[1], n, b));
                u8::store(out, n, flags.1, |out| match op {
                    CompareOp::Eq => map2(a, b, out, |a, b| u8::from(a == b)),
                    CompareOp::Ne => map2(a, b, out, |a, b| u8::from(a != b)),
                    CompareOp::Lt => map2(a, b, out, |a, b| u8::from(a < b)),
                    CompareOp::Le => map2(a, b, out, |a, b| u8::from(a <= b)),
                    CompareOp::Gt => map2(a, b, out, |a, b| u8::from(a > b)),
                    CompareOp::Ge => map2(a, b, out, |a, b| u8::from(a >= b)),
                });
            }
        }
        MapOp::Select => {
            let [wide_a, wide_b, _] = &mut lines.spread;
            // SAFETY: the caller's promise; the condition is bool.
            unsafe {
                let c = u8::load(inputs[0], n, &mut flags.0.operands[2]);
                let c = c.spread(n, &mut flags.0.spread[2]);
                let x = T::load(inputs[1], n, a).spread(n, wide_a);
                let y = T::load(inputs[2], n, b).spread(n, wide_b);
                T::store(out, n, result, |out| {
                    for (((o, &c), &x), &y) in out.iter_mut().zip(c).zip(x).zip(y) {
                        *o = if c != 0 { x } else { y };
                    }
                });
            }
        }
        MapOp::Cast | MapOp::Index | MapOp::RowNumber => {}
    }
}

/// What a lane's element becomes in each lane.
struct Conversions<F, I, L, B> {
    float: F,
    int: I,
    long: L,
    byte: B,
}

/// Computes one line of a cast from a lane.
///
/// # Safety
/// All cursors' elements must be valid; nobody else may use those of `to`.
#[inline(always)]
unsafe fn cast_line<T: Lane>(
    (from, to, n): (Cursor, Cursor, usize),
    buffer: &mut [T; LINE],
    results: &mut Results,
    convert: Conversions<impl Fn(T) -> f32, impl Fn(T) -> i32, impl Fn(T) -> i64, impl Fn(T) -> u8>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let a = T::load(from, n, buffer);
        match to.dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                f32::store(to, n, &mut results.floats, |out| map1(a, out, convert.float));
            }
            DType::I32 => i32::store(to, n, &mut results.ints, |out| map1(a, out, convert.int)),
            DType::I64 => i64::store(to, n, &mut results.longs, |out| map1(a, out, convert.long)),
            // Programs are checked for narrow dtypes, of which there is none.
            DType::U8 | DType::E4M3 | DType::I4 => {
                u8::store(to, n, &mut results.bytes, |out| map1(a, out, convert.byte));
            }
            DType::Bool => u8::store(to, n, &mut results.bytes, |out| {
                map1(a, out, |a| u8::from(a != T::default()));
            }),
        }
    }
}

/// Copies or converts one line.
///
/// # Safety
/// All cursors' elements must be valid; nobody else may use those of `to`.
#[inline(always)]
unsafe fn cast(from: Cursor, to: Cursor, n: usize, lines: &mut AllLines) {
    if from.dtype == to.dtype && from.stride == 1 && to.stride == 1 {
        let bytes = n * from.dtype.size();
        // SAFETY: the caller vouches for `n` consecutive elements on both sides, and nobody else
        // uses those of `to`.
        unsafe { std::ptr::copy_nonoverlapping(from.address, to.address, bytes) };
        return;
    }
    let float = to.dtype;
    let AllLines { floats, longs, ints, bytes, results } = lines;
    // SAFETY: the caller's promise.
    unsafe {
        match from.dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                let convert = Conversions {
                    float: |a: f32| a,
                    int: |a: f32| a as i32,
                    long: |a: f32| a as i64,
                    byte: |a: f32| a as u8,
                };
                cast_line::<f32>((from, to, n), &mut floats.operands[0], results, convert);
            }
            DType::I32 => {
                let convert = Conversions {
                    float: |a: i32| integer_to_float(i64::from(a), float),
                    int: |a: i32| a,
                    long: |a: i32| i64::from(a),
                    byte: |a: i32| a.clamp(0, 255) as u8,
                };
                cast_line::<i32>((from, to, n), &mut ints.operands[0], results, convert);
            }
            DType::I64 => {
                let convert = Conversions {
                    float: |a: i64| integer_to_float(a, float),
                    int: |a: i64| a.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32,
                    long: |a: i64| a,
                    byte: |a: i64| a.clamp(0, 255) as u8,
                };
                cast_line::<i64>((from, to, n), &mut longs.operands[0], results, convert);
            }
            DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                let convert = Conversions {
                    float: |a: u8| f32::from(a),
                    int: |a: u8| i32::from(a),
                    long: |a: u8| i64::from(a),
                    byte: |a: u8| a,
                };
                cast_line::<u8>((from, to, n), &mut bytes.operands[0], results, convert);
            }
        }
    }
}

/// Writes the integers from `first` on, `step` apart, rounded to the cursor's dtype.
///
/// # Safety
/// The cursor's elements must be valid and used by nobody else.
#[inline(always)]
pub(super) unsafe fn count(
    isa: Isa,
    to: Cursor,
    n: usize,
    first: i64,
    step: i64,
    lines: &mut AllLines,
) {
    let mut numbers = [0i64; LINE];
    numbers[..n].iter_mut().enumerate().for_each(|(i, x)| *x = first + i as i64 * step);
    let from = Cursor { address: numbers.as_mut_ptr().cast(), dtype: DType::I64, stride: 1 };
    // SAFETY: `numbers` holds n elements; the caller vouches for `to`.
    unsafe { map_line(isa, MapOp::Cast, DType::I64, &[from; 3], to, n, lines) };
}

/// One line of an op as a kernel, so that it is compiled for each instruction set.
struct MapLine<'a> {
    op: MapOp,
    dtype: DType,
    inputs: &'a [Cursor; 3],
    out: Cursor,
    n: usize,
    lines: &'a mut AllLines,
}

impl Kernel for MapLine<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { op, dtype, inputs, out, n, lines } = self;
        if op == MapOp::Cast {
            // SAFETY: the promise of the caller of `map_line`.
            unsafe { cast(inputs[0], out, n, lines) };
            return;
        }
        let AllLines { floats, longs, ints, bytes, results } = lines;
        let flags = (bytes, &mut results.bytes);
        // SAFETY: the promise of the caller of `map_line`.
        unsafe {
            match dtype {
                DType::F32 | DType::F16 | DType::BF16 => {
                    same_dtype::<f32>(op, inputs, out, n, floats, &mut results.floats, flags);
                }
                DType::I32 => same_dtype(op, inputs, out, n, ints, &mut results.ints, flags),
                DType::I64 => same_dtype(op, inputs, out, n, longs, &mut results.longs, flags),
                DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                    let (mut own, mut result) = (Lines::<u8>::zeroed(), [0u8; LINE]);
                    same_dtype(op, inputs, out, n, &mut own, &mut result, flags);
                }
            }
        }
    }
}

/// Computes one line of `op`, whose operands have `dtype` (the condition of a select aside).
///
/// # Safety
/// All cursors' elements must be valid; nobody else may use those of `out`.
#[inline(always)]
pub(super) unsafe fn map_line(
    isa: Isa,
    op: MapOp,
    dtype: DType,
    inputs: &[Cursor; 3],
    out: Cursor,
    n: usize,
    lines: &mut AllLines,
) {
    isa.dispatch(MapLine { op, dtype, inputs, out, n, lines });
}
