//! Eight lanes: AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::vector::{Kernel, Simd};

instruction_set! {
    /// Proof that the machine has the instruction set.
    Avx2: "avx2,fma,f16c",
    "avx2", "fma", "f16c"
}

type V = __m256;

impl Simd for Avx2 {
    type V = V;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 3;
    const KEY_ROWS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        set!(_mm256_set1_ps(x))
    }
    lane_ops! {
        add(a, b) = _mm256_add_ps;
        sub(a, b) = _mm256_sub_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        fma(a, b, c) = _mm256_fmadd_ps;
        max(a, b) = _mm256_max_ps;
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        set!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn pow2(self, a: V) -> V {
        set!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
            _mm256_cvtps_epi32(a),
            _mm256_set1_epi32(127)
        ))))
    }
    #[inline(always)]
    fn zero_where_less(self, a: V, b: V, c: V) -> V {
        set!(_mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(a, b), c))
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [V; 4]) -> [f32; 4] {
        set!({
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let abcd = _mm256_add_ps(
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            );
            let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        })
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        set!({
            let half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        set!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> V {
        // SAFETY: the token, and the caller's promise of 8 readable elements.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> V {
        // SAFETY: the token, and the caller's promise of 8 readable elements.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> V {
        // SAFETY: the token, and the caller's promise of 8 readable elements.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> V {
        // SAFETY: the token, and the caller's promise of 8 readable bytes.
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)));
            let rest = _mm256_slli_epi32::<20>(_mm256_and_si256(wide, _mm256_set1_epi32(0x7f)));
            let small = _mm256_castsi256_ps(_mm256_or_si256(sign, rest));
            _mm256_mul_ps(small, _mm256_set1_ps(super::codes::E4M3_POWER))
        }
    }
    #[inline(always)]
    unsafe fn load_i4(self, p: *const u8) -> V {
        // SAFETY: the token, and the caller's promise of 4 readable bytes.
        unsafe {
            let word = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            let each = _mm256_sllv_epi32(word, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(each))
        }
    }
    #[inline(always)]
    unsafe fn store_f32(self, v: V, p: *mut f32) {
        // SAFETY: the token, and the caller's promise of 8 writable elements.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: V, p: *mut f16) {
        // SAFETY: the token, and the caller's promise of 8 writable elements.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, v: V, p: *mut bf16) {
        // SAFETY: the token, and the caller's promise of 8 writable elements.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let upper = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
            let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
            let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let out = _mm256_blendv_epi8(rounded, quiet, nan);
            let packed = _mm256_packus_epi32(out, out);
            let joined = _mm256_permute4x64_epi64::<0b00_00_10_00>(packed);
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(joined));
        }
    }
}
