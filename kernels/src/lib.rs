//! Lowering of regions to kernels, attention, sampling, matmul, custom-op implementation traits.
