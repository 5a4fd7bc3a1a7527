//! The element types in which a checkpoint may store a tensor.

use std::fmt;

/// Element type of a stored tensor: those that the tensor IR can declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TensorDtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned byte.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl TensorDtype {
    /// Every supported type, widest use first.
    pub const ALL: [TensorDtype; 7] =
        [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::I64, Self::U8, Self::Bool];

    /// Size of one element in bytes.
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether weights of this type can be multiplied: `f32`, `f16` and `bf16`.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The type that a safetensors header calls `name`, if it is supported.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.safetensors_name() == name)
    }

    /// The name in a safetensors header.
    pub fn safetensors_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
        }
    }

    /// The float type that a `config.json` calls `name`, as in `"dtype": "bfloat16"`; a `torch.`
    /// prefix is allowed.
    pub fn from_torch(name: &str) -> Option<Self> {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" => Some(Self::F32),
            "float16" => Some(Self::F16),
            "bfloat16" => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// The mnemonic of the textual IR: `f32`, `bf16`, ...
impl fmt::Display for TensorDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::Bool => "bool",
        })
    }
}
