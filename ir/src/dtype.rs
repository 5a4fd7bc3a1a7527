//! Element types and what rounding to them means.

use crate::e4m3;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use strum::{Display, IntoStaticStr};

/// The element type of a tensor. A dtype is also a rounding: every typed value is rounded to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Two's complement, 32 bits.
    I32,
    /// Two's complement, 64 bits.
    I64,
    /// Unsigned byte.
    U8,
    /// One byte, 0 or 1.
    Bool,
    /// Four bits of exponent, three of mantissa, no infinity (`e4m3fn` of OCP's 8-bit floats): at
    /// most 448, at least 2^-9. [Narrow](Self::is_narrow).
    E4M3,
    /// Two's complement, 4 bits: -8 to 7. Two lie in a byte, the first in its lower half, and each line
    /// of the innermost axis begins at a byte. [Narrow](Self::is_narrow).
    I4,
}

impl DType {
    /// Every dtype, in the order of declaration.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::Bool,
        Self::E4M3,
        Self::I4,
    ];

    /// Bits of one element.
    pub const fn bits(self) -> u64 {
        match self {
            Self::I64 => 64,
            Self::F32 | Self::I32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::U8 | Self::Bool | Self::E4M3 => 8,
            Self::I4 => 4,
        }
    }

    /// Bytes of one element that stands alone. Of many, [`Self::line_bytes`] counts.
    pub const fn size(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    /// Bytes of a line of `elements`, which begins at a byte; saturating.
    pub const fn line_bytes(self, elements: u64) -> u64 {
        match self.bits() {
            bits if bits < 8 => elements.div_ceil(8 / bits),
            bits => elements.saturating_mul(bits / 8),
        }
    }

    /// Whether elements share bytes.
    pub const fn is_packed(self) -> bool {
        self.bits() < 8
    }

    /// Whether it is a form in which weights are kept, not one to compute in: only `scaled_matmul`,
    /// `gather`, `cast`, and `slice` and `concat` of whole lines take it.
    pub const fn is_narrow(self) -> bool {
        match self {
            Self::E4M3 | Self::I4 => true,
            Self::F32 | Self::F16 | Self::BF16 => false,
            Self::I32 | Self::I64 | Self::U8 | Self::Bool => false,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::E4M3 => true,
            Self::I32 | Self::I64 | Self::U8 | Self::Bool | Self::I4 => false,
        }
    }

    /// Whether elements are integers (`bool` is not).
    pub const fn is_int(self) -> bool {
        match self {
            Self::I32 | Self::I64 | Self::U8 | Self::I4 => true,
            Self::F32 | Self::F16 | Self::BF16 | Self::Bool | Self::E4M3 => false,
        }
    }

    /// Whether a value of this dtype may index rows (`i32` or `i64`).
    pub const fn is_index(self) -> bool {
        match self {
            Self::I32 | Self::I64 => true,
            Self::F32 | Self::F16 | Self::BF16 | Self::U8 | Self::Bool => false,
            Self::E4M3 | Self::I4 => false,
        }
    }

    /// Its token in the textual IR.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// `x` rounded to this dtype: to nearest even for floats, where `e4m3` saturates; truncated and
    /// saturated for integers, where NaN becomes 0; for `bool`, 1 if `x` is not 0.
    pub fn round(self, x: f64) -> f64 {
        match self {
            Self::F32 => f64::from(x as f32),
            Self::F16 => to_f16(x).to_f64(),
            Self::BF16 => to_bf16(x).to_f64(),
            Self::I32 => f64::from(x as i32),
            Self::I64 => x as i64 as f64,
            Self::U8 => f64::from(x as u8),
            Self::Bool => f64::from(u8::from(x != 0.0)),
            Self::E4M3 => e4m3::to_f64(e4m3::from_f64(x)),
            Self::I4 => f64::from((x as i8).clamp(-8, 7)),
        }
    }
}

/// `x` rounded to nearest even. The conversion of `half` from f64 drops the low 32 bits first, and
/// so takes what lies just over the middle of two numbers for the middle.
pub(crate) fn to_f16(x: f64) -> f16 {
    f16::from_f32(to_odd(x))
}

/// `x` rounded to nearest even.
pub(crate) fn to_bf16(x: f64) -> bf16 {
    bf16::from_f32(to_odd(x))
}

/// `x` where f32 holds it, and else the one of its two neighbours in f32 whose last bit is set:
/// rounding that to fewer bits gives what rounding `x` would.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() {
        return near;
    }
    let beyond = f64::from(near).abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

/// A dtype name that no dtype has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{0}`: expected one of f32, f16, bf16, i32, i64, u8, bool, e4m3, i4")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;
    fn from_str(s: &str) -> Result<Self, UnknownDType> {
        Self::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| UnknownDType(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_lies_just_over_the_middle_rounds_up() {
        for below in [2f64.powi(-23), 2f64.powi(-40), 2f64.powi(-52)] {
            assert_eq!(DType::BF16.round(1.0 + 2f64.powi(-8) + below), 1.0 + 2f64.powi(-7));
            assert_eq!(DType::F16.round(1.0 + 2f64.powi(-11) + below), 1.0 + 2f64.powi(-10));
        }
        assert_eq!(DType::BF16.round(1.0 + 2f64.powi(-8)), 1.0);
        assert_eq!(DType::F16.round(65_519.999), 65_504.0);
        assert_eq!(DType::F16.round(65_520.0), f64::INFINITY);
        assert_eq!(DType::BF16.round(f64::MAX), f64::INFINITY);
        assert_eq!(DType::F16.round(-1e-300).to_bits(), (-0.0f64).to_bits());
        assert!(DType::BF16.round(f64::NAN).is_nan());
    }

    proptest! {
        #[test]
        fn f32_values_round_as_from_f32(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            prop_assume!(!x.is_nan());
            let wide = f64::from(x);
            prop_assert_eq!(DType::BF16.round(wide), bf16::from_f32(x).to_f64());
            prop_assert_eq!(DType::F16.round(wide), f16::from_f32(x).to_f64());
        }

        #[test]
        fn rounding_is_to_a_nearest_value(x in -1e4f64..1e4) {
            for dtype in [DType::BF16, DType::F16] {
                let rounded = dtype.round(x);
                let step = (x.abs() * 2f64.powi(if dtype == DType::F16 { -11 } else { -8 }))
                    .max(2f64.powi(-25));
                prop_assert!((rounded - x).abs() <= step, "{} of {}", dtype, x);
                prop_assert_eq!(dtype.round(rounded), rounded);
            }
        }
    }
}
