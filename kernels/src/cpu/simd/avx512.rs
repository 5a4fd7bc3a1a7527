//! Sixteen lanes: AVX-512 F, BW, DQ and VL.
//!
//! The dot product instructions of AVX512-BF16 are not used: they flush subnormals and round
//! between the two products of a pair, which the f32 accumulation of the contract does not.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::vector::{Kernel, Simd};

instruction_set! {
    /// Proof that the machine has the instruction set.
    Avx512: "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"
}

type V = __m512;

#[inline(always)]
fn widen_bf16(v: __m256i) -> V {
    set!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v))))
}

impl Simd for Avx512 {
    type V = V;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 6;
    const KEY_ROWS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        set!(_mm512_set1_ps(x))
    }
    lane_ops! {
        add(a, b) = _mm512_add_ps;
        sub(a, b) = _mm512_sub_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        fma(a, b, c) = _mm512_fmadd_ps;
        max(a, b) = _mm512_max_ps;
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        set!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn pow2(self, a: V) -> V {
        set!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
            _mm512_cvtps_epi32(a),
            _mm512_set1_epi32(127)
        ))))
    }
    #[inline(always)]
    fn zero_where_less(self, a: V, b: V, c: V) -> V {
        set!(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), c))
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [V; 4]) -> [f32; 4] {
        set!({
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let abcd = _mm512_add_ps(
                _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd),
            );
            let half =
                _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps::<1>(abcd));
            let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        })
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        set!(_mm512_reduce_max_ps(v))
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        set!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> V {
        // SAFETY: the token, and the caller's promise of 16 readable elements.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> V {
        // SAFETY: the token, and the caller's promise of 16 readable elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> V {
        // SAFETY: the token, and the caller's promise of 16 readable elements.
        widen_bf16(unsafe { _mm256_loadu_si256(p.cast()) })
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> V {
        // SAFETY: the token, and the caller's promise of 16 readable bytes.
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)));
            let rest = _mm512_slli_epi32::<20>(_mm512_and_si512(wide, _mm512_set1_epi32(0x7f)));
            let small = _mm512_castsi512_ps(_mm512_or_si512(sign, rest));
            _mm512_mul_ps(small, _mm512_set1_ps(super::codes::E4M3_POWER))
        }
    }
    #[inline(always)]
    unsafe fn load_i4(self, p: *const u8) -> V {
        // SAFETY: the token, and the caller's promise of 8 readable bytes.
        unsafe {
            let low = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            let high = _mm256_set1_epi32(p.add(4).cast::<i32>().read_unaligned());
            let words = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let places = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
            let each = _mm512_sllv_epi32(words, _mm512_broadcast_i64x4(places));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<28>(each))
        }
    }
    #[inline(always)]
    unsafe fn store_f32(self, v: V, p: *mut f32) {
        // SAFETY: the token, and the caller's promise of 16 writable elements.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: V, p: *mut f16) {
        // SAFETY: the token, and the caller's promise of 16 writable elements.
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(p.cast(), half);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, v: V, p: *mut bf16) {
        // SAFETY: the token, and the caller's promise of 16 writable elements.
        unsafe {
            let bits = _mm512_castps_si512(v);
            let upper = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
            let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
            let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let out = _mm512_mask_mov_epi32(rounded, nan, quiet);
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(out));
        }
    }
}
