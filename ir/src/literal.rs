//! Constant tensors and scalars in the IR.

use crate::dtype::{DType, to_bf16, to_f16};
use crate::e4m3;
use crate::types::TensorType;
use half::{bf16, f16};

/// One element of any dtype, as exact bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Scalar {
    /// The type that its bits are read as.
    pub dtype: DType,
    bits: u64,
}

impl Scalar {
    /// The element of `dtype` nearest to `value` (see [`DType::round`]).
    pub fn new(dtype: DType, value: f64) -> Self {
        let bits = match dtype {
            DType::F32 => u64::from((value as f32).to_bits()),
            DType::F16 => u64::from(to_f16(value).to_bits()),
            DType::BF16 => u64::from(to_bf16(value).to_bits()),
            DType::I32 => u64::from(value as i32 as u32),
            DType::I64 => value as i64 as u64,
            DType::U8 => u64::from(value as u8),
            DType::Bool => u64::from(value != 0.0),
            DType::E4M3 => u64::from(e4m3::from_f64(value)),
            DType::I4 => u64::from(dtype.round(value) as i8 as u8 & 15),
        };
        Self { dtype, bits }
    }

    /// An integer element, exact for all of `i64`; saturated to `dtype` where it is narrower.
    pub fn int(dtype: DType, value: i64) -> Self {
        match dtype {
            DType::I64 => Self { dtype, bits: value as u64 },
            DType::I32 | DType::U8 | DType::Bool | DType::F32 | DType::F16 | DType::BF16 => {
                Self::new(dtype, value as f64)
            }
            DType::E4M3 | DType::I4 => Self::new(dtype, value as f64),
        }
    }

    /// The element of `dtype` with these bits; bits beyond its size are dropped.
    pub fn from_bits(dtype: DType, bits: u64) -> Self {
        Self { dtype, bits: bits & (u64::MAX >> (64 - dtype.bits())) }
    }

    /// The element's bits, zero-extended.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// Its value; an `i64` beyond 2^53 is rounded.
    pub fn to_f64(self) -> f64 {
        match self.dtype {
            DType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::F16 => f16::from_bits(self.bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(self.bits as u16).to_f64(),
            DType::I32 => f64::from(self.bits as u32 as i32),
            DType::I64 => self.bits as i64 as f64,
            DType::U8 | DType::Bool => self.bits as f64,
            DType::E4M3 => e4m3::to_f64(self.bits as u8),
            DType::I4 => f64::from((self.bits as i8) << 4 >> 4),
        }
    }

    /// Its little-endian bytes, as many as the dtype has.
    pub fn to_bytes(self) -> Vec<u8> {
        self.bits.to_le_bytes()[..self.dtype.size()].to_vec()
    }
}

/// A constant tensor of static shape, as row-major little-endian bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Literal {
    dtype: DType,
    bytes: Vec<u8>,
}

impl Literal {
    /// The most elements a literal may have, so that its text stays exact and readable.
    pub const MAX_ELEMENTS: usize = 1024;

    /// The elements `values`, each rounded to `dtype`.
    pub fn new(dtype: DType, values: impl IntoIterator<Item = f64>) -> Self {
        Self::from_scalars(dtype, values.into_iter().map(|v| Scalar::new(dtype, v)))
    }

    /// The elements `scalars`, taken as they are.
    pub fn from_scalars(dtype: DType, scalars: impl IntoIterator<Item = Scalar>) -> Self {
        Self { dtype, bytes: scalars.into_iter().flat_map(Scalar::to_bytes).collect() }
    }

    /// The dtype of all elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many elements there are; 1 of a scalar.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Row-major little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Each element with the literal's dtype, row-major.
    pub fn scalars(&self) -> impl Iterator<Item = Scalar> + '_ {
        self.bytes.chunks_exact(self.dtype.size()).map(|chunk| {
            let mut bits = [0u8; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            Scalar::from_bits(self.dtype, u64::from_le_bytes(bits))
        })
    }

    /// Whether it has the dtype and the number of elements of `ty`.
    pub fn fits(&self, ty: &TensorType) -> bool {
        ty.dtype == self.dtype && ty.static_elements() == Some(self.len() as u64)
    }
}
