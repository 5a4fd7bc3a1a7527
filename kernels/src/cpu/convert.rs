//! Conversions between float slices, to nearest with ties to even; NaN stays NaN.

use super::element::Element;
use super::simd::Simd;

/// Converts `len` elements.
///
/// # Safety
/// `from` is valid for reading and `to` for writing `len` elements; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn convert_row<S: Simd, A: Element, B: Element>(
    s: S,
    from: *const A,
    to: *mut B,
    len: usize,
) {
    let whole = len - len % S::LANES;
    let mut i = 0;
    while i < whole {
        // SAFETY: i + LANES <= len.
        unsafe { B::store(s, A::load(s, from.add(i)), to.add(i)) };
        i += S::LANES;
    }
    while i < len {
        // SAFETY: i < len.
        unsafe { *to.add(i) = B::from_f32((*from.add(i)).to_f32()) };
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::simd::Kernel;
    use half::{bf16, f16};

    struct Convert<'a, A, B>(&'a [A], &'a mut [B]);

    impl<A: Element, B: Element> Kernel for Convert<'_, A, B> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            assert_eq!(self.0.len(), self.1.len());
            // SAFETY: both slices have so many elements, and one of them is borrowed alone.
            unsafe { convert_row(s, self.0.as_ptr(), self.1.as_mut_ptr(), self.0.len()) }
        }
    }

    /// Every f32 whose bits end in one of a few patterns around the rounding boundaries.
    fn boundary_values() -> Vec<f32> {
        let mut values = Vec::new();
        for upper in 0..=u16::MAX {
            for lower in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                values.push(f32::from_bits((u32::from(upper) << 16) | lower));
            }
        }
        values.extend([1.0; 5]);
        values
    }

    #[test]
    fn narrowing_agrees_with_half_on_every_isa() {
        let values = boundary_values();
        for isa in Isa::available() {
            let mut b = vec![bf16::ZERO; values.len()];
            let mut h = vec![f16::ZERO; values.len()];
            isa.dispatch(Convert(&values, &mut b));
            isa.dispatch(Convert(&values, &mut h));
            for (i, x) in values.iter().enumerate() {
                if x.is_nan() {
                    assert!(b[i].is_nan() && h[i].is_nan(), "{isa}: NaN {:#x} lost", x.to_bits());
                    continue;
                }
                assert_eq!(b[i].to_bits(), bf16::from_f32(*x).to_bits(), "{isa}: bf16 of {x:e}");
                assert_eq!(h[i].to_bits(), f16::from_f32(*x).to_bits(), "{isa}: f16 of {x:e}");
            }
        }
    }

    #[test]
    fn widening_is_exact_for_every_bit_pattern() {
        let b: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let h: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for isa in Isa::available() {
            let mut from_b = vec![0.0; b.len()];
            let mut from_h = vec![0.0; h.len()];
            isa.dispatch(Convert(&b, &mut from_b));
            isa.dispatch(Convert(&h, &mut from_h));
            for i in 0..b.len() {
                assert!(from_b[i] == b[i].to_f32() || (from_b[i].is_nan() && b[i].is_nan()));
                assert!(from_h[i] == h[i].to_f32() || (from_h[i].is_nan() && h[i].is_nan()));
            }
        }
    }

    #[test]
    fn short_and_odd_lengths_convert_every_element_and_no_more() {
        for isa in Isa::available() {
            for len in 0..40 {
                let from: Vec<f32> = (0..len).map(|i| i as f32 + 0.5).collect();
                let mut to = vec![f16::NAN; len + 3];
                isa.dispatch(Convert(&from, &mut to[..len]));
                assert!(to[..len].iter().zip(&from).all(|(t, f)| t.to_f32() == *f));
                assert!(to[len..].iter().all(|t| t.is_nan()));
            }
        }
    }
}
