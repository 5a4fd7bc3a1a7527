//! What every instruction set computes on vectors, and what a kernel is written against.

use half::{bf16, f16};

/// A computation written once for all instruction sets.
pub(crate) trait Kernel {
    type Output;
    /// Implementations are `#[inline(always)]` and call no closure in a hot loop: only inlined
    /// code is compiled for the instruction set.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Largest `Simd::LANES`, for stack buffers.
pub(crate) const MAX_LANES: usize = 16;

/// Vectors of f32. A value of the type is the proof that the machine has the instruction set, so
/// only operations on addresses are unsafe.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    type V: Copy;
    const LANES: usize;
    /// Rows of the left operand that a dot tile of four weight rows keeps in registers.
    const TILE_ROWS: usize;
    /// Rows of keys whose dot products with one query are kept in registers; a multiple of 4 that
    /// divides 16.
    const KEY_ROWS: usize;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the set has such an instruction.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b` in each lane: `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^a` for integral `a` in -126..=127; anything for other lanes.
    fn pow2(self, a: Self::V) -> Self::V;
    /// +0 in lanes where `a < b`, else `c`.
    fn zero_where_less(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The four lane sums, each by the same fixed tree.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// The largest lane; lanes that are NaN may be passed over.
    fn max_lane(self, v: Self::V) -> f32;

    /// Asks for the cache line at any address, valid or not.
    #[inline(always)]
    fn prefetch<T>(self, _p: *const T) {}

    /// # Safety
    /// `p` is valid for reading `LANES` elements.
    unsafe fn load_f32(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `p` is valid for reading `LANES` elements.
    unsafe fn load_f16(self, p: *const f16) -> Self::V;
    /// # Safety
    /// `p` is valid for reading `LANES` elements.
    unsafe fn load_bf16(self, p: *const bf16) -> Self::V;
    /// The numbers of `LANES` bytes that are e4m3 codes; what they call NaN becomes 480.
    ///
    /// # Safety
    /// `p` is valid for reading `LANES` bytes.
    unsafe fn load_e4m3(self, p: *const u8) -> Self::V;
    /// The numbers of `LANES` integers of 4 bits, the first in the lower half of the first byte.
    ///
    /// # Safety
    /// `p` is valid for reading `LANES / 2` bytes.
    unsafe fn load_i4(self, p: *const u8) -> Self::V;
    /// # Safety
    /// `p` is valid for writing `LANES` elements.
    unsafe fn store_f32(self, v: Self::V, p: *mut f32);
    /// # Safety
    /// `p` is valid for writing `LANES` elements.
    unsafe fn store_f16(self, v: Self::V, p: *mut f16);
    /// # Safety
    /// `p` is valid for writing `LANES` elements.
    unsafe fn store_bf16(self, v: Self::V, p: *mut bf16);

    /// The sum of the lanes by the tree of [`Simd::sum4`].
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let zero = self.splat(0.0);
        self.sum4([v, zero, zero, zero])[0]
    }

    /// `e^x` within 2 ulp for x in -87.3..=88; +0 below (also for -inf); NaN for NaN.
    ///
    /// Cody-Waite reduction by ln 2 in two parts and a polynomial of degree 6 (the coefficients of
    /// Cephes `expf`, S. Moshier).
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        let lowest = self.splat(-87.336_54);
        let bounded = self.max(lowest, x);
        let n = self.round(self.mul(bounded, self.splat(std::f32::consts::LOG2_E)));
        let r = self.fma(n, self.splat(-0.693_359_4), bounded);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        p = self.fma(p, r, self.splat(1.398_199_9e-3));
        p = self.fma(p, r, self.splat(8.333_452e-3));
        p = self.fma(p, r, self.splat(4.166_579_6e-2));
        p = self.fma(p, r, self.splat(1.666_666_5e-1));
        p = self.fma(p, r, self.splat(0.5));
        p = self.fma(p, self.mul(r, r), r);
        let y = self.mul(self.add(p, self.splat(1.0)), self.pow2(n));
        self.zero_where_less(x, lowest, y)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Isa;
    use super::*;

    struct ExpOf<'a>(&'a [f32], &'a mut [f32]);
    impl Kernel for ExpOf<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for (x, y) in self.0.iter().zip(self.1) {
                let mut lanes = [0.0; MAX_LANES];
                // SAFETY: the buffer holds MAX_LANES >= LANES elements.
                unsafe { s.store_f32(s.exp(s.splat(*x)), lanes.as_mut_ptr()) };
                *y = lanes[S::LANES - 1];
            }
        }
    }

    #[test]
    fn exp_is_close_to_f64_on_every_isa() {
        let mut xs: Vec<f32> = (0..40_000).map(|i| -87.3 + i as f32 * 0.0043).collect();
        xs.extend([f32::NEG_INFINITY, -1000.0, 0.0, -0.0, f32::NAN]);
        for isa in Isa::available() {
            let mut ys = vec![0.0; xs.len()];
            isa.dispatch(ExpOf(&xs, &mut ys));
            for (x, y) in xs.iter().zip(&ys) {
                let want = f64::from(*x).exp();
                if x.is_nan() {
                    assert!(y.is_nan(), "{isa}: exp(NaN) = {y}");
                } else if *x < -87.34 {
                    assert_eq!(*y, 0.0, "{isa}: exp({x})");
                } else {
                    let error = (f64::from(*y) - want).abs() / want;
                    assert!(error < 2.5e-7, "{isa}: exp({x}) = {y}, want {want}, error {error}");
                }
            }
        }
    }

    struct SumsOf([f32; 64]);
    impl Kernel for SumsOf {
        type Output = [f32; 5];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; 5] {
            // SAFETY: four loads of at most 16 lanes at multiples of 16 lie within 64 elements.
            let v = unsafe {
                let p = self.0.as_ptr();
                [s.load_f32(p), s.load_f32(p.add(16)), s.load_f32(p.add(32)), s.load_f32(p.add(48))]
            };
            let [a, b, c, d] = s.sum4(v);
            [a, b, c, d, s.max_lane(v[3])]
        }
    }

    #[test]
    fn lane_sums_and_maximum_on_every_isa() {
        let values: [f32; 64] = std::array::from_fn(|i| ((i * 37) % 64) as f32);
        for isa in Isa::available() {
            let lanes = if isa.to_string() == "avx512" { 16 } else { 8 };
            let got = isa.dispatch(SumsOf(values));
            for (part, sum) in got[..4].iter().enumerate() {
                let want: f32 = values[part * 16..][..lanes].iter().sum();
                assert_eq!(*sum, want, "{isa}: vector {part}");
            }
            let want = values[48..][..lanes].iter().copied().fold(0.0, f32::max);
            assert_eq!(got[4], want, "{isa}: largest lane");
        }
    }

    struct CodesOf<'a>(&'a [u8], bool);
    impl Kernel for CodesOf<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let Self(codes, packed) = self;
            let mut all = Vec::new();
            for codes in codes.chunks_exact(if packed { S::LANES / 2 } else { S::LANES }) {
                let mut lanes = [0.0; MAX_LANES];
                // SAFETY: a chunk has the bytes of a vector, the buffer MAX_LANES >= LANES elements.
                unsafe {
                    let v = match packed {
                        true => s.load_i4(codes.as_ptr()),
                        false => s.load_e4m3(codes.as_ptr()),
                    };
                    s.store_f32(v, lanes.as_mut_ptr());
                }
                all.extend_from_slice(&lanes[..S::LANES]);
            }
            all
        }
    }

    #[test]
    fn every_narrow_code_is_its_number_on_every_isa() {
        use piecewise_ir::dtype::DType;
        use piecewise_ir::literal::Scalar;
        let codes: Vec<u8> = (0..=u8::MAX).collect();
        for isa in Isa::available() {
            for (code, x) in codes.iter().zip(isa.dispatch(CodesOf(&codes, false))) {
                let want = Scalar::from_bits(DType::E4M3, u64::from(*code)).to_f64();
                let is_nan = want.is_nan() && x.abs() == 480.0;
                assert!(is_nan || f64::from(x) == want, "{isa}: {code:#x} is {x}, not {want}");
            }
            let integers = isa.dispatch(CodesOf(&codes, true));
            for (i, x) in integers.into_iter().enumerate() {
                let code = u64::from(codes[i / 2] >> (i % 2 * 4));
                assert_eq!(f64::from(x), Scalar::from_bits(DType::I4, code).to_f64(), "{isa}: {i}");
            }
        }
    }
}
