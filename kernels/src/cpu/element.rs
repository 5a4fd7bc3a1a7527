//! The three float element types, and addresses whose element type is known at run time.

use crate::op::{FloatSlice, FloatSliceMut};
use half::{bf16, f16};

use super::scratch::Shared;
use super::simd::{MAX_LANES, Simd};

/// The start of a slice of a run-time element type, for threads that each use a part of their own.
/// One made by [`FloatAddress::of`] is only read through.
#[derive(Clone, Copy)]
pub(crate) enum FloatAddress {
    F32(Shared<f32>),
    F16(Shared<f16>),
    Bf16(Shared<bf16>),
}

/// Runs `$body` with `$p` bound to the typed address of any variant.
macro_rules! with_address {
    ($value:expr, $p:ident => $body:expr) => {
        match $value {
            $crate::cpu::element::FloatAddress::F32($crate::cpu::scratch::Shared($p)) => $body,
            $crate::cpu::element::FloatAddress::F16($crate::cpu::scratch::Shared($p)) => $body,
            $crate::cpu::element::FloatAddress::Bf16($crate::cpu::scratch::Shared($p)) => $body,
        }
    };
}
pub(crate) use with_address;

impl FloatAddress {
    pub(crate) fn of(values: FloatSlice<'_>) -> FloatAddress {
        match values {
            FloatSlice::F32(s) => FloatAddress::F32(Shared(s.as_ptr().cast_mut())),
            FloatSlice::F16(s) => FloatAddress::F16(Shared(s.as_ptr().cast_mut())),
            FloatSlice::Bf16(s) => FloatAddress::Bf16(Shared(s.as_ptr().cast_mut())),
        }
    }

    pub(crate) fn of_mut(values: FloatSliceMut<'_>) -> FloatAddress {
        match values {
            FloatSliceMut::F32(s) => FloatAddress::F32(Shared(s.as_mut_ptr())),
            FloatSliceMut::F16(s) => FloatAddress::F16(Shared(s.as_mut_ptr())),
            FloatSliceMut::Bf16(s) => FloatAddress::Bf16(Shared(s.as_mut_ptr())),
        }
    }

    pub(crate) fn offset(self, elements: usize) -> FloatAddress {
        match self {
            FloatAddress::F32(p) => FloatAddress::F32(Shared(p.0.wrapping_add(elements))),
            FloatAddress::F16(p) => FloatAddress::F16(Shared(p.0.wrapping_add(elements))),
            FloatAddress::Bf16(p) => FloatAddress::Bf16(Shared(p.0.wrapping_add(elements))),
        }
    }
}

/// An element type that vectors load from and store to, converted to and from f32 on the way.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Rounds to nearest, ties to even; NaN stays NaN.
    fn from_f32(x: f32) -> Self;

    fn to_f32(self) -> f32;

    /// # Safety
    /// `p` is valid for reading `S::LANES` elements.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;

    /// Lanes past `n` are +0.
    /// # Safety
    /// `p` is valid for reading `n` elements, `n < S::LANES`.
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, p: *const Self, n: usize) -> S::V {
        let mut lanes = [Self::from_f32(0.0); MAX_LANES];
        // SAFETY: the caller's promise covers the source, the buffer holds MAX_LANES >= LANES > n.
        unsafe {
            p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n);
            Self::load(s, lanes.as_ptr())
        }
    }

    /// # Safety
    /// `p` is valid for writing `S::LANES` elements.
    unsafe fn store<S: Simd>(s: S, v: S::V, p: *mut Self);
}

macro_rules! element {
    ($type:ty, $from:expr, $to:expr, $load:ident, $store:ident) => {
        impl Element for $type {
            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                $from(x)
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to(self)
            }
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
                // SAFETY: the caller promises what the vector load needs.
                unsafe { s.$load(p) }
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(s: S, v: S::V, p: *mut Self) {
                // SAFETY: the caller promises what the vector store needs.
                unsafe { s.$store(v, p) }
            }
        }
    };
}

element!(f32, std::convert::identity, std::convert::identity, load_f32, store_f32);
element!(f16, f16::from_f32, f16::to_f32, load_f16, store_f16);
element!(bf16, bf16::from_f32, bf16::to_f32, load_bf16, store_bf16);
