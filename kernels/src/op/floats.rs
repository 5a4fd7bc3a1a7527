//! Slices of floats whose element type is known at run time.

use half::{bf16, f16};
use piecewise_ir::dtype::DType;
use std::ops::Range;

/// A read-only slice of floats.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum FloatSlice<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// A mutable slice of floats.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum FloatSliceMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

/// Runs `$body` with `$s` bound to the typed slice of any variant.
macro_rules! with_elements {
    ($enum:ident, $value:expr, $s:ident => $body:expr) => {
        match $value {
            $crate::op::$enum::F32($s) => $body,
            $crate::op::$enum::F16($s) => $body,
            $crate::op::$enum::Bf16($s) => $body,
        }
    };
}
pub(crate) use with_elements;

impl<'a> FloatSlice<'a> {
    /// Some neighbouring elements of it, all of which it has.
    pub(crate) fn part(self, elements: Range<usize>) -> FloatSlice<'a> {
        match self {
            FloatSlice::F32(s) => FloatSlice::F32(&s[elements]),
            FloatSlice::F16(s) => FloatSlice::F16(&s[elements]),
            FloatSlice::Bf16(s) => FloatSlice::Bf16(&s[elements]),
        }
    }

    /// Of each element.
    pub fn dtype(&self) -> DType {
        match self {
            FloatSlice::F32(_) => DType::F32,
            FloatSlice::F16(_) => DType::F16,
            FloatSlice::Bf16(_) => DType::BF16,
        }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        with_elements!(FloatSlice, self, s => s.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl FloatSliceMut<'_> {
    /// Of each element.
    pub fn dtype(&self) -> DType {
        match self {
            FloatSliceMut::F32(_) => DType::F32,
            FloatSliceMut::F16(_) => DType::F16,
            FloatSliceMut::Bf16(_) => DType::BF16,
        }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        with_elements!(FloatSliceMut, self, s => s.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
