//! Lines: up to [`LINE`] consecutive iterations of a loop, read from memory of any dtype into the
//! type that arithmetic happens in, and written back with rounding.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use crate::lower::LINE;
use half::f16;
use half::slice::HalfFloatSliceExt;
use piecewise_ir::dtype::DType;

/// A place at the first element of a line: address, dtype, and elements between iterations.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    pub(super) address: *mut u8,
    pub(super) dtype: DType,
    pub(super) stride: usize,
}

impl Cursor {
    /// The cursor `iterations` further on.
    #[inline(always)]
    pub(super) fn advanced(self, iterations: usize) -> Self {
        let bytes = iterations * self.stride * self.dtype.size();
        Self { address: self.address.wrapping_add(bytes), ..self }
    }

    /// The cursor `elements` further on, whatever its stride.
    #[inline(always)]
    pub(super) fn moved(self, elements: usize) -> Self {
        Self { address: self.address.wrapping_add(elements * self.dtype.size()), ..self }
    }
}

/// The elements of a line.
#[derive(Clone, Copy)]
pub(super) enum Line<'a, T> {
    /// One for each iteration.
    Each(&'a [T]),
    /// One that every iteration reads.
    Same(T),
}

impl<'a, T: Lane> Line<'a, T> {
    #[inline(always)]
    pub(super) fn at(self, i: usize) -> T {
        match self {
            Self::Each(slice) => slice[i],
            Self::Same(x) => x,
        }
    }

    /// The elements as a slice; `buffer` holds them where they are all the same.
    #[inline(always)]
    pub(super) fn spread(self, n: usize, buffer: &'a mut [T; LINE]) -> &'a [T] {
        match self {
            Self::Each(slice) => slice,
            Self::Same(x) => {
                buffer[..n].fill(x);
                &buffer[..n]
            }
        }
    }
}

/// A type that arithmetic happens in: f32 for every float, the integer types for themselves, u8
/// also for bool.
pub(super) trait Lane: Copy + PartialOrd + Default + 'static {
    /// Reads up to [`LINE`] elements.
    ///
    /// # Safety
    /// The cursor's elements must be valid to read for `'a` and not written meanwhile.
    unsafe fn load<'a>(from: Cursor, n: usize, buffer: &'a mut [Self; LINE]) -> Line<'a, Self>;

    /// Whether elements of `dtype` are this type's own, so that they are written in place.
    fn is_own(dtype: DType) -> bool;

    /// Writes elements that are not written in place, rounded to the cursor's dtype.
    ///
    /// # Safety
    /// The cursor's elements must be valid to write and not used by anyone else.
    unsafe fn write(to: Cursor, elements: &[Self]);

    /// Writes `n` elements that `fill` computes, rounded to the cursor's dtype.
    ///
    /// `fill` stands in one place, so that it is inlined and compiled for the instruction set.
    ///
    /// # Safety
    /// The cursor's elements must be valid to write and not used by anyone else.
    #[inline(always)]
    unsafe fn store(
        to: Cursor,
        n: usize,
        buffer: &mut [Self; LINE],
        fill: impl FnOnce(&mut [Self]),
    ) {
        let in_place = Self::is_own(to.dtype) && (to.stride == 1 || n == 1);
        fill(match in_place {
            // SAFETY: the caller vouches for `n` consecutive elements that nobody else uses.
            true => unsafe { std::slice::from_raw_parts_mut(to.address.cast(), n) },
            false => &mut buffer[..n],
        });
        if !in_place {
            // SAFETY: the caller's promise.
            unsafe { Self::write(to, &buffer[..n]) };
        }
    }

    /// Whether it is not a number.
    fn is_nan(self) -> bool;
}

/// Reads elements of exactly the lane's type.
///
/// # Safety
/// As for [`Lane::load`]; the dtype's elements must be `T`s.
#[inline(always)]
unsafe fn load_same<'a, T: Copy>(from: Cursor, n: usize, buffer: &'a mut [T; LINE]) -> Line<'a, T> {
    let start: *const T = from.address.cast();
    match from.stride {
        // SAFETY: the caller vouches for the first element.
        0 => Line::Same(unsafe { *start }),
        // SAFETY: the caller vouches for `n` consecutive elements that nobody writes for `'a`.
        1 => Line::Each(unsafe { std::slice::from_raw_parts(start, n) }),
        stride => {
            for (i, slot) in buffer[..n].iter_mut().enumerate() {
                // SAFETY: the caller vouches for the element of each iteration.
                *slot = unsafe { *start.add(i * stride) };
            }
            Line::Each(&buffer[..n])
        }
    }
}

/// Reads elements that `convert` makes f32.
///
/// # Safety
/// As for [`Lane::load`]; the dtype's elements must be `T`s.
#[inline(always)]
unsafe fn load_converted<'a, T: Copy>(
    from: Cursor,
    n: usize,
    buffer: &'a mut [f32; LINE],
    convert: impl Fn(T) -> f32,
) -> Line<'a, f32> {
    let start: *const T = from.address.cast();
    match from.stride {
        // SAFETY: the caller vouches for the first element.
        0 => return Line::Same(convert(unsafe { *start })),
        1 => {
            // SAFETY: the caller vouches for `n` consecutive elements that nobody writes.
            let elements = unsafe { std::slice::from_raw_parts(start, n) };
            for (to, x) in buffer[..n].iter_mut().zip(elements) {
                *to = convert(*x);
            }
        }
        stride => {
            for (i, to) in buffer[..n].iter_mut().enumerate() {
                // SAFETY: the caller vouches for the element of each iteration.
                *to = convert(unsafe { *start.add(i * stride) });
            }
        }
    }
    Line::Each(&buffer[..n])
}

/// Writes what `convert` makes of elements.
///
/// # Safety
/// As for [`Lane::write`]; the dtype's elements must be `T`s.
#[inline(always)]
unsafe fn store_converted<L: Copy, T: Copy>(to: Cursor, values: &[L], convert: impl Fn(L) -> T) {
    let start: *mut T = to.address.cast();
    if to.stride == 1 {
        // SAFETY: the caller vouches for consecutive elements of its own.
        let elements = unsafe { std::slice::from_raw_parts_mut(start, values.len()) };
        for (to, x) in elements.iter_mut().zip(values) {
            *to = convert(*x);
        }
        return;
    }
    for (i, x) in values.iter().enumerate() {
        // SAFETY: the caller vouches for the element of each iteration.
        unsafe { *start.add(i * to.stride) = convert(*x) };
    }
}

macro_rules! integer_lane {
    ($type:ty) => {
        impl Lane for $type {
            #[inline(always)]
            unsafe fn load<'a>(
                from: Cursor,
                n: usize,
                buffer: &'a mut [Self; LINE],
            ) -> Line<'a, Self> {
                // SAFETY: the caller's promise; programs are checked for dtypes.
                unsafe { load_same(from, n, buffer) }
            }
            #[inline(always)]
            fn is_own(_: DType) -> bool {
                true
            }
            #[inline(always)]
            unsafe fn write(to: Cursor, elements: &[Self]) {
                // SAFETY: the caller's promise; programs are checked for dtypes.
                unsafe { store_converted(to, elements, |x: Self| x) }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    };
}
integer_lane!(u8);
integer_lane!(i32);
integer_lane!(i64);

impl Lane for f32 {
    #[inline(always)]
    unsafe fn load<'a>(from: Cursor, n: usize, buffer: &'a mut [Self; LINE]) -> Line<'a, Self> {
        match from.dtype {
            // SAFETY: the caller's promise; a bf16 is its 16 bits.
            DType::BF16 => unsafe { load_converted::<u16>(from, n, buffer, widen) },
            DType::F16 if from.stride == 1 => {
                // SAFETY: the caller vouches for `n` consecutive elements.
                let halves = unsafe { std::slice::from_raw_parts(from.address.cast::<f16>(), n) };
                halves.convert_to_f32_slice(&mut buffer[..n]);
                Line::Each(&buffer[..n])
            }
            // SAFETY: the caller's promise.
            DType::F16 => unsafe { load_converted::<f16>(from, n, buffer, f16::to_f32) },
            // SAFETY: the caller's promise; programs are checked for dtypes, so it is f32.
            DType::F32 | DType::I32 | DType::I64 | DType::U8 | DType::Bool => unsafe {
                load_same(from, n, buffer)
            },
            DType::E4M3 | DType::I4 => unreachable!("programs are checked for narrow dtypes"),
        }
    }

    #[inline(always)]
    fn is_own(dtype: DType) -> bool {
        match dtype {
            DType::BF16 | DType::F16 => false,
            DType::F32 | DType::I32 | DType::I64 | DType::U8 | DType::Bool => true,
            DType::E4M3 | DType::I4 => false,
        }
    }

    #[inline(always)]
    unsafe fn write(to: Cursor, elements: &[Self]) {
        // SAFETY (all arms): the caller's promise; programs are checked for dtypes, and a bf16 is
        // its 16 bits.
        match to.dtype {
            // SAFETY: as above.
            DType::BF16 => unsafe { store_converted(to, elements, narrow) },
            DType::F16 if to.stride == 1 => {
                let start = to.address.cast::<f16>();
                // SAFETY: as above.
                let halves = unsafe { std::slice::from_raw_parts_mut(start, elements.len()) };
                halves.convert_from_f32_slice(elements);
            }
            // SAFETY: as above.
            DType::F16 => unsafe { store_converted(to, elements, f16::from_f32) },
            // SAFETY: as above.
            DType::F32 | DType::I32 | DType::I64 | DType::U8 | DType::Bool => unsafe {
                store_converted(to, elements, |x: f32| x)
            },
            DType::E4M3 | DType::I4 => unreachable!("programs are checked for narrow dtypes"),
        }
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
}

#[inline(always)]
fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16, ties to even; a NaN keeps its upper bits and becomes quiet.
#[inline(always)]
fn narrow(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// One integer rounded to a float dtype in one step, as the nearest f32 to the result. As
/// everywhere else it is an f64 first, which is exact up to 2^53.
#[inline(always)]
pub(super) fn integer_to_float(x: i64, dtype: DType) -> f32 {
    dtype.round(x as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn bf16_lines_round_as_the_half_crate_does() {
        let mut state = 1u32;
        let values: Vec<f32> = (0..200_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f32::from_bits(state)
            })
            .chain([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 0.0, -0.0])
            .collect();
        for x in values {
            let (ours, theirs) = (bf16::from_bits(narrow(x)), bf16::from_f32(x));
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{x:e}");
        }
    }

    #[test]
    fn integers_just_over_the_middle_of_two_floats_round_up() {
        let middle = |exponent: u32, bits: u32| (1i64 << exponent) + (1 << (exponent - bits));
        for exponent in [24, 30, 45] {
            let up = (1i64 << exponent) + (1 << (exponent - 7));
            let just_over = integer_to_float(middle(exponent, 8) + 1, DType::BF16);
            assert_eq!(just_over, up as f32, "2^{exponent}");
            let tie = integer_to_float(middle(exponent, 8), DType::BF16);
            assert_eq!(tie, (1i64 << exponent) as f32, "2^{exponent}");
        }
        for (x, rounded) in [(2049, 2048.0), (2051, 2052.0), (65_519, 65_504.0)] {
            assert_eq!(integer_to_float(x, DType::F16), rounded);
            assert_eq!(integer_to_float(-x, DType::F16), -rounded);
        }
        assert_eq!(integer_to_float(65_520, DType::F16), f32::INFINITY);
        assert_eq!(integer_to_float(middle(40, 24) + 1, DType::F32), 2f32.powi(40) + 2f32.powi(17));
    }

    #[test]
    fn strided_lines_of_every_float_come_back() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for stride in [1usize, 3] {
                let n = 37;
                let mut memory = vec![0u64; (n * stride * 4).div_ceil(8)];
                let at = Cursor { address: memory.as_mut_ptr().cast(), dtype, stride };
                let (mut a, mut b) = ([0f32; LINE], [0f32; LINE]);
                // SAFETY: `memory` holds n * stride elements of at most four bytes.
                let line = unsafe {
                    f32::store(at, n, &mut a, |slice| {
                        slice.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - 7.5);
                    });
                    f32::load(at, n, &mut b)
                };
                let Line::Each(read) = line else { panic!("one element") };
                assert!(read.iter().enumerate().all(|(i, &x)| x == i as f32 - 7.5), "{dtype}");
            }
        }
    }
}
