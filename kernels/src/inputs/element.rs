//! Rust types as elements of tensors.

use half::{bf16, f16};
use piecewise_ir::dtype::DType;

/// A Rust type that is the element of a tensor.
pub trait Element: bytemuck::NoUninit + bytemuck::CheckedBitPattern {
    /// How the IR calls this type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty = $dtype:ident),*) => {
        $(impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements!(f32 = F32, f16 = F16, bf16 = BF16, i32 = I32, i64 = I64, u8 = U8, bool = Bool);
