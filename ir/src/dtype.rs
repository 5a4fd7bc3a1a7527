//! Element types and what rounding to them means.

use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// The element type of a tensor. A dtype is also a rounding: every typed value is rounded to it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
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
}

impl DType {
    /// Every dtype, in the order of declaration.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::BF16, Self::I32, Self::I64, Self::U8, Self::Bool];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether elements are integers (`bool` is not).
    pub const fn is_int(self) -> bool {
        matches!(self, Self::I32 | Self::I64 | Self::U8)
    }

    /// Whether a value of this dtype may index rows (`i32` or `i64`).
    pub const fn is_index(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }

    /// Its token in the textual IR.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// `x` rounded to this dtype: to nearest even for floats; truncated and saturated for
    /// integers, where NaN becomes 0; for `bool`, 1 if `x` is not 0.
    pub fn round(self, x: f64) -> f64 {
        match self {
            Self::F32 => f64::from(x as f32),
            Self::F16 => f16::from_f64(x).to_f64(),
            Self::BF16 => bf16::from_f64(x).to_f64(),
            Self::I32 => f64::from(x as i32),
            Self::I64 => x as i64 as f64,
            Self::U8 => f64::from(x as u8),
            Self::Bool => f64::from(u8::from(x != 0.0)),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dtype name that no dtype has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{0}`: expected one of f32, f16, bf16, i32, i64, u8, bool")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;
    fn from_str(s: &str) -> Result<Self, UnknownDType> {
        Self::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| UnknownDType(s.to_owned()))
    }
}
