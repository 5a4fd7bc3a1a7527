//! Tiles of dot products: a few rows of x against a few rows of w, both contiguous in k.
//!
//! The sum of one output is fixed by k and the instruction set alone: lane `l` adds the products
//! at `l`, `l + LANES`, ... in that order (the tail as if padded with zeros), then the lanes are
//! added by one fixed tree. Neither the other rows of the tile nor the element type of w enter,
//! so any tiling and any thread count gives the same bits.

use super::element::Element;
use super::simd::Simd;

/// A stretch after each weight row that a tile fetches while it computes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ahead {
    /// Elements from the start of the row to the start of the stretch.
    pub(crate) start: usize,
    /// The part of the row's length that the stretch has: one in so many.
    pub(crate) share: usize,
}

/// `sums[i][r] = sum over k of x[i * x_stride + k] * w[r][k]`.
///
/// With `AHEAD`, what lies `ahead` elements after each weight row is fetched into the cache.
///
/// # Safety
/// `x` is valid for reading `M` rows of `k` elements at `x_stride`, each `w[r]` for `k` elements.
#[inline(always)]
pub(crate) unsafe fn dot_tile<
    S: Simd,
    W: Element,
    const M: usize,
    const R: usize,
    const AHEAD: bool,
>(
    s: S,
    x: *const f32,
    x_stride: usize,
    w: &[*const W; R],
    ahead: Ahead,
    k: usize,
) -> [[f32; R]; M] {
    let mut acc = [[s.splat(0.0); R]; M];
    let whole = k - k % S::LANES;
    let mut at = 0;
    let mut fetch = ahead.start;
    let fetch_step = if AHEAD { S::LANES / ahead.share.max(1) } else { 0 };
    while at < whole {
        let mut rows = [s.splat(0.0); M];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: i < M and at + LANES <= k.
            *row = unsafe { s.load_f32(x.add(i * x_stride + at)) };
        }
        for r in 0..R {
            if AHEAD {
                s.prefetch(w[r].wrapping_add(fetch));
            }
            // SAFETY: at + LANES <= k.
            let weight = unsafe { W::load(s, w[r].add(at)) };
            for i in 0..M {
                acc[i][r] = s.fma(rows[i], weight, acc[i][r]);
            }
        }
        at += S::LANES;
        fetch = fetch.wrapping_add(fetch_step);
    }
    if at < k {
        let rest = k - at;
        for r in 0..R {
            // SAFETY: `rest` elements remain, fewer than LANES.
            let weight = unsafe { W::load_partial(s, w[r].add(at), rest) };
            for (i, acc) in acc.iter_mut().enumerate() {
                // SAFETY: i < M and `rest` elements remain, fewer than LANES.
                let row = unsafe { f32::load_partial(s, x.add(i * x_stride + at), rest) };
                acc[r] = s.fma(row, weight, acc[r]);
            }
        }
    }
    let mut sums = [[0.0; R]; M];
    for i in 0..M {
        let mut r = 0;
        while r < R {
            let four = s.sum4([acc[i][r], acc[i][r + 1], acc[i][r + 2], acc[i][r + 3]]);
            sums[i][r..r + 4].copy_from_slice(&four);
            r += 4;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::simd::Kernel;
    use half::bf16;

    struct Tile<'a> {
        x: &'a [f32],
        w: &'a [bf16],
        k: usize,
    }

    impl Kernel for Tile<'_> {
        type Output = ([[f32; 4]; 2], [[f32; 4]; 1]);
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let w = [0, 1, 2, 3].map(|r| self.w[r * self.k..].as_ptr());
            // SAFETY: x holds two rows and w four rows of k elements.
            unsafe {
                let both = dot_tile::<S, bf16, 2, 4, false>(
                    s,
                    self.x.as_ptr(),
                    self.k,
                    &w,
                    Ahead::default(),
                    self.k,
                );
                let second = self.x[self.k..].as_ptr();
                (
                    both,
                    dot_tile::<S, bf16, 1, 4, true>(
                        s,
                        second,
                        self.k,
                        &w,
                        Ahead { start: 9, share: 2 },
                        self.k,
                    ),
                )
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_a_tile() {
        for isa in Isa::available() {
            for k in [0usize, 1, 7, 8, 15, 16, 17, 100] {
                let x: Vec<f32> = (0..2 * k).map(|i| (i as f32 * 0.37).sin()).collect();
                let w: Vec<bf16> =
                    (0..4 * k).map(|i| bf16::from_f32((i as f32 * 0.11).cos())).collect();
                let (both, alone) = isa.dispatch(Tile { x: &x, w: &w, k });
                assert_eq!(both[1].map(f32::to_bits), alone[0].map(f32::to_bits));
                for r in 0..4 {
                    let want: f64 = (0..k)
                        .map(|j| f64::from(x[k + j]) * f64::from(w[r * k + j].to_f32()))
                        .sum();
                    assert!((f64::from(alone[0][r]) - want).abs() < 1e-4, "{isa} k={k}");
                }
            }
        }
    }
}
