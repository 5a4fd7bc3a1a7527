//! Transcendental functions in f32 that vectorize, accurate to a few ulp.

/// `e^x`. Range reduction by `ln 2` in two parts (Cody and Waite), then the degree-7 Taylor
/// polynomial on `[-ln 2 / 2, ln 2 / 2]`, whose truncation error is below 2^-27.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-104.0, 89.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    let y = (p * r) * r + r + 1.0;
    // Two factors, so that results near the ends of the range stay exact powers of two away.
    // The low bits of `shifted` are n; of a NaN they are anything, and y is NaN.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Hyperbolic tangent: an odd polynomial near 0 (Cephes `tanhf`), else `1 - 2 / (e^2x + 1)`.
#[inline(always)]
pub(in crate::cpu) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let s = x * x;
    let mut p = -5.704_988_7e-3;
    p = p * s + 2.063_909e-2;
    p = p * s - 5.373_971_7e-2;
    p = p * s + 1.333_144_2e-1;
    p = p * s - 3.333_327_7e-1;
    let near = (p * s) * x + x;
    let far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    (if a < 0.625 { near } else { far }).copysign(x)
}

/// The error function: an odd polynomial near 0, else `1 - e^p(|x|)`; the coefficients of N. Juffa's
/// `erff`. Both sides are computed, so that lines of it vectorize.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let s = x * x;
    let mut p = -5.967_617e-4;
    p = p * s + 4.991_194_2e-3;
    p = p * s - 2.676_813_5e-2;
    p = p * s + 1.128_199_3e-1;
    p = p * s - 3.761_253_4e-1;
    p = p * s + 1.283_791_7e-1;
    let near = p * x + x;
    let q = -1.728_534_7e-5 * a + 3.831_971_3e-4;
    let mut q = q * s + (-3.883_964_4e-3 * a + 2.425_462_2e-2);
    q = q * a - 1.067_778_8e-1;
    q = q * a - 6.348_467e-1;
    q = q * a - 1.287_175_1e-1;
    q = q * a - a;
    // Beyond 4 it is 1, and the polynomial is not to be followed far.
    let far = (1.0 - exp(if a < 4.0 { q } else { -20.0 })).copysign(x);
    if a > 0.927_734_4 { far } else { near }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        let ulp = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
        (f64::from(got) - exact).abs() / ulp
    }

    #[test]
    fn exp_and_tanh_are_within_a_few_ulp() {
        let (mut worst_exp, mut worst_tanh) = (0f64, 0f64);
        for i in 0..400_000 {
            let x = -87.0 + i as f32 * (175.0 / 400_000.0);
            worst_exp = worst_exp.max(ulps(exp(x), f64::from(x).exp()));
            let x = x / 9.0;
            worst_tanh = worst_tanh.max(ulps(tanh(x), f64::from(x).tanh()));
        }
        assert!(worst_exp <= 2.0, "{worst_exp}");
        assert!(worst_tanh <= 3.0, "{worst_tanh}");
    }

    #[test]
    fn erf_is_within_a_few_ulp() {
        let mut worst = 0f64;
        for i in 0..400_000 {
            let x = -6.0 + i as f32 * (12.0 / 400_000.0);
            worst = worst.max(ulps(erf(x), libm::erf(f64::from(x))));
        }
        assert!(worst <= 4.0, "{worst}");
        assert_eq!((erf(f32::INFINITY), erf(-30.0), erf(-0.0).to_bits()), (1.0, -1.0, 1 << 31));
        assert!(erf(f32::NAN).is_nan());
        assert_eq!(erf(1e-30), 1.128_379_2e-30);
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert!(exp(-103.0) > 0.0);
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((tanh(40.0), tanh(-40.0), tanh(-0.0).to_bits()), (1.0, -1.0, 0x8000_0000));
    }
}
