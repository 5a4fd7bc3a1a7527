//! Vectors as arrays of eight, for the compiler to vectorize as the target allows.

use half::{bf16, f16};

use super::vector::Simd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Portable;

const LANES: usize = 8;
type V = [f32; LANES];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = V;
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 2;
    const KEY_ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // Without a hardware instruction `mul_add` is a slow library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn pow2(self, a: V) -> V {
        a.map(|n| f32::from_bits((n as i32).wrapping_add(127).wrapping_shl(23) as u32))
    }
    #[inline(always)]
    fn zero_where_less(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| if a[i] < b[i] { 0.0 } else { c[i] })
    }
    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        v.map(|v| {
            let quarter: [f32; 4] = std::array::from_fn(|i| v[i] + v[i + 4]);
            (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
        })
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> V {
        // SAFETY: the caller promises LANES readable elements.
        unsafe { p.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> V {
        // SAFETY: the caller promises LANES readable elements.
        unsafe { p.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> V {
        // SAFETY: the caller promises LANES readable elements.
        unsafe { p.cast::<[bf16; LANES]>().read_unaligned() }
            .map(|x| f32::from_bits(u32::from(x.to_bits()) << 16))
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> V {
        // SAFETY: the caller promises LANES readable bytes.
        unsafe { p.cast::<[u8; LANES]>().read() }.map(super::codes::e4m3)
    }
    #[inline(always)]
    unsafe fn load_i4(self, p: *const u8) -> V {
        // SAFETY: the caller promises half as many readable bytes.
        let bytes = unsafe { p.cast::<[u8; LANES / 2]>().read() };
        std::array::from_fn(|i| super::codes::i4(bytes[i / 2] >> (i % 2 * 4)))
    }
    #[inline(always)]
    unsafe fn store_f32(self, v: V, p: *mut f32) {
        // SAFETY: the caller promises LANES writable elements.
        unsafe { p.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: V, p: *mut f16) {
        // SAFETY: the caller promises LANES writable elements.
        unsafe { p.cast::<[f16; LANES]>().write_unaligned(v.map(f16::from_f32)) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, v: V, p: *mut bf16) {
        // SAFETY: the caller promises LANES writable elements.
        unsafe { p.cast::<[bf16; LANES]>().write_unaligned(v.map(bf16::from_f32)) }
    }
}
