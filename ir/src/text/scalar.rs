//! Scalars in text: exact bits, as the shortest decimal that reads back where there is one.

use crate::dtype::DType;
use crate::literal::Scalar;

/// The text of `scalar` where its dtype is `context`; elsewhere, and for values without a
/// decimal, its bits: `f32:0x7fc00001`.
pub(super) fn print(scalar: Scalar, context: DType) -> String {
    let decimal = if scalar.dtype == context { decimal(scalar) } else { None };
    decimal.unwrap_or_else(|| bits(scalar))
}

fn bits(scalar: Scalar) -> String {
    let digits = 2 * scalar.dtype.size();
    format!("{}:0x{:0digits$x}", scalar.dtype, scalar.bits())
}

fn decimal(scalar: Scalar) -> Option<String> {
    let bits = scalar.bits();
    match scalar.dtype {
        DType::F32 => {
            let value = f32::from_bits(bits as u32);
            value.is_finite().then(|| format!("{value:?}"))
        }
        DType::F16 | DType::BF16 | DType::E4M3 => {
            let value = scalar.to_f64();
            if !value.is_finite() {
                return None;
            }
            // 6 digits tell all values of 11 significant bits apart. A decimal so close to the
            // middle of two values that rounding through f32 goes astray is passed over, because
            // some processors round that way.
            (0..6).find_map(|digits| {
                let short: f64 = format!("{value:.digits$e}").parse().ok()?;
                let routes = [short, f64::from(short as f32)];
                let same = routes.iter().all(|&v| Scalar::new(scalar.dtype, v).bits() == bits);
                same.then(|| format!("{short:?}"))
            })
        }
        DType::I32 => Some((bits as u32 as i32).to_string()),
        DType::I64 => Some((bits as i64).to_string()),
        DType::U8 => Some(bits.to_string()),
        DType::I4 => Some(scalar.to_f64().to_string()),
        DType::Bool => match bits {
            0 => Some("false".to_owned()),
            1 => Some("true".to_owned()),
            _ => None,
        },
    }
}

/// The element of `dtype` that the decimal `text` names, with its sign: the nearest for floats,
/// the exact one for integers. `None` if the number is outside the dtype.
pub(super) fn parse_decimal(dtype: DType, text: &str) -> Option<Scalar> {
    match dtype {
        DType::F32 => {
            let value: f32 = text.parse().ok().filter(|v: &f32| v.is_finite())?;
            Some(Scalar::from_bits(dtype, u64::from(value.to_bits())))
        }
        DType::F16 | DType::BF16 | DType::E4M3 => {
            let scalar = Scalar::new(dtype, text.parse().ok()?);
            scalar.to_f64().is_finite().then_some(scalar)
        }
        DType::I32 => text.parse().ok().map(|v: i32| Scalar::from_bits(dtype, u64::from(v as u32))),
        DType::I64 => text.parse().ok().map(|v: i64| Scalar::from_bits(dtype, v as u64)),
        DType::U8 => text.parse().ok().map(|v: u8| Scalar::from_bits(dtype, u64::from(v))),
        DType::I4 => {
            let value = text.parse().ok().filter(|v: &i64| (-8..=7).contains(v))?;
            Some(Scalar::int(dtype, value))
        }
        DType::Bool => None,
    }
}

/// The element of `dtype` with these bits, if they fit into it.
pub(super) fn from_bits(dtype: DType, bits: u64) -> Option<Scalar> {
    let scalar = Scalar::from_bits(dtype, bits);
    (scalar.bits() == bits).then_some(scalar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trips(dtype: DType, bits: u64) {
        let scalar = Scalar::from_bits(dtype, bits);
        let text = print(scalar, dtype);
        let back = match text.split_once(":0x") {
            Some((name, hex)) => {
                assert_eq!(name, dtype.name());
                from_bits(dtype, u64::from_str_radix(hex, 16).unwrap())
            }
            None => parse_decimal(dtype, &text),
        };
        assert_eq!(back, Some(scalar), "{text}");
    }

    #[test]
    fn every_half_value_reads_back() {
        for bits in 0..=u64::from(u16::MAX) {
            round_trips(DType::F16, bits);
            round_trips(DType::BF16, bits);
        }
    }

    #[test]
    fn edges_read_back() {
        for bits in [0, 1, 0x8000_0000, 0x7f7f_ffff, 0x7f80_0000, 0x7fc0_0001, 0xffff_ffff] {
            round_trips(DType::F32, bits);
            round_trips(DType::I32, bits);
        }
        for bits in [0, 1, u64::MAX, 1 << 63, (1 << 53) + 1] {
            round_trips(DType::I64, bits);
        }
    }

    #[test]
    fn shortest_in_their_own_precision() {
        assert_eq!(print(Scalar::new(DType::BF16, 0.1), DType::BF16), "0.1");
        assert_eq!(print(Scalar::new(DType::F32, 0.1), DType::F32), "0.1");
        assert_eq!(print(Scalar::from_bits(DType::F32, 0x7fc0_0001), DType::F32), "f32:0x7fc00001");
        assert_eq!(print(Scalar::new(DType::F32, 1.0), DType::BF16), "f32:0x3f800000");
    }

    #[test]
    fn numbers_outside_the_dtype_are_refused() {
        assert_eq!(parse_decimal(DType::U8, "256"), None);
        assert_eq!(parse_decimal(DType::F16, "1e6"), None);
        assert_eq!(parse_decimal(DType::F32, "1e400"), None);
        assert_eq!(parse_decimal(DType::I32, "1.5"), None);
        assert_eq!(from_bits(DType::U8, 0x100), None);
    }
}
