//! Lowering of regions to kernels, attention, sampling, matmul, custom-op implementation traits.
#![allow(
    unsafe_code,
    reason = "kernels read and write raw slices through vector instructions; each block states why it holds"
)]

pub mod cpu;
