//! The 8-bit float `e4m3`: its bits and its values.
//!
//! A sign, four bits of exponent with bias 7, three of mantissa; exponent 0 holds multiples of 2^-9.
//! There is no infinity: all ones but the sign is NaN, and the pattern before it is 448 (OCP, 8-bit
//! Floating Point Specification, E4M3).

/// The largest number.
pub const MAX: f64 = 448.0;

/// The bits of the number nearest to `x`, ties to even. What is beyond the largest number becomes
/// it, infinities among that; NaN stays.
pub fn from_f64(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = u8::from(x.is_sign_negative()) << 7;
    let magnitude = x.abs().min(MAX);
    // Numbers of one exponent are 2^(exponent - 3) apart, below 2^-6 as above it. A subnormal f64 is far
    // below.
    let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(-6);
    let steps = (magnitude * power_of_two(3 - exponent)).round_ties_even() as i32;
    // Eight steps begin the first exponent; a sixteenth carries into the next.
    sign | (((exponent + 6) << 3) + steps) as u8
}

/// The number that the bits are; exact.
pub fn to_f64(bits: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * power_of_two(-9),
        _ => (8.0 + mantissa) * power_of_two(exponent - 10),
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_comes_back() {
        for bits in 0..=u8::MAX {
            let x = to_f64(bits);
            match x.is_nan() {
                true => assert_eq!(bits & 0x7f, 0x7f),
                false => assert_eq!(from_f64(x), bits, "{x}"),
            }
        }
        let known = [(0x00, 0.0), (0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0)];
        for (bits, x) in known.into_iter().chain([(0x7e, 448.0), (0xc1, -2.25)]) {
            assert_eq!(to_f64(bits), x);
        }
    }

    #[test]
    fn what_lies_between_goes_to_the_nearest_and_a_middle_to_the_even() {
        let mut numbers: Vec<f64> = (0..0x7f).map(to_f64).collect();
        numbers.sort_by(f64::total_cmp);
        for (at, pair) in numbers.windows(2).enumerate() {
            let (below, above) = (at as u8, at as u8 + 1);
            let middle = f64::midpoint(pair[0], pair[1]);
            let even = if below % 2 == 0 { below } else { above };
            assert_eq!(from_f64(middle), even, "the middle {middle}");
            assert_eq!(from_f64(middle.next_down()), below, "below {middle}");
            assert_eq!(from_f64(middle.next_up()), above, "above {middle}");
            assert_eq!(from_f64(-middle.next_up()), 0x80 | above);
        }
    }

    #[test]
    fn what_is_too_large_is_the_largest_and_nan_stays() {
        for x in [448.0, 464.0, 1e300, f64::INFINITY] {
            assert_eq!((from_f64(x), from_f64(-x)), (0x7e, 0xfe), "{x}");
        }
        assert!(to_f64(from_f64(f64::NAN)).is_nan());
        assert_eq!(from_f64(1e-320), 0);
    }
}
