//! What the tests of the CPU kernels share.

#![warn(clippy::wildcard_enum_match_arm)]

use half::{bf16, f16};

use super::{FloatSlice, FloatSliceMut, Isa};
use piecewise_ir::dtype::DType;

/// A multiplicative congruential generator, for reproducible test data.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// In [0, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 7) as f32 / (1 << 24) as f32
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// An owned buffer of a run-time float type.
#[derive(Clone)]
pub(crate) enum FloatVec {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl FloatVec {
    pub(crate) fn round_from(float_type: DType, values: &[f32]) -> FloatVec {
        match float_type {
            DType::F32 => FloatVec::F32(values.to_vec()),
            DType::F16 => FloatVec::F16(values.iter().map(|x| f16::from_f32(*x)).collect()),
            DType::BF16 => FloatVec::Bf16(values.iter().map(|x| bf16::from_f32(*x)).collect()),
            DType::I32 | DType::I64 | DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                panic!("{float_type} is no float of slices")
            }
        }
    }

    pub(crate) fn get(&self, i: usize) -> f32 {
        match self {
            FloatVec::F32(v) => v[i],
            FloatVec::F16(v) => v[i].to_f32(),
            FloatVec::Bf16(v) => v[i].to_f32(),
        }
    }

    pub(crate) fn set(&mut self, i: usize, x: f32) {
        match self {
            FloatVec::F32(v) => v[i] = x,
            FloatVec::F16(v) => v[i] = f16::from_f32(x),
            FloatVec::Bf16(v) => v[i] = bf16::from_f32(x),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub(crate) fn as_slice(&self) -> FloatSlice<'_> {
        match self {
            FloatVec::F32(v) => FloatSlice::F32(v),
            FloatVec::F16(v) => FloatSlice::F16(v),
            FloatVec::Bf16(v) => FloatSlice::Bf16(v),
        }
    }

    pub(crate) fn as_slice_mut(&mut self) -> FloatSliceMut<'_> {
        match self {
            FloatVec::F32(v) => FloatSliceMut::F32(v),
            FloatVec::F16(v) => FloatSliceMut::F16(v),
            FloatVec::Bf16(v) => FloatSliceMut::Bf16(v),
        }
    }

    /// The f32 bits of each value, which compare NaN too.
    pub(crate) fn bits(&self) -> Vec<u32> {
        (0..self.len()).map(|i| self.get(i).to_bits()).collect()
    }
}

/// A zeroed buffer of exactly `len` bytes at the alignment that scratch needs.
pub(crate) struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl AlignedBytes {
    pub(crate) fn new(len: usize) -> AlignedBytes {
        AlignedBytes { lines: vec![Line([0xff; 64]); len.div_ceil(64)], len }
    }

    pub(crate) fn get(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// Runs `work` in a rayon pool of its own.
pub(crate) fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

pub(crate) fn isas() -> Vec<Isa> {
    Isa::available().collect()
}
