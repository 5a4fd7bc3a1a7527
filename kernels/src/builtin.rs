//! The custom ops that this crate defines.

use crate::attention::{CpuPagedAttention, CudaPagedAttention, PagedAttention};
use crate::op::OpRegistry;
use crate::sampling::{CpuSample, CudaSample, Sample};
use std::sync::Arc;

impl OpRegistry {
    /// The ops that this crate defines.
    pub fn builtin() -> Self {
        let mut registry = Self::new();
        registry.define(Arc::new(PagedAttention)).define(Arc::new(Sample));
        registry.implement_cpu(Arc::new(CpuPagedAttention)).implement_cpu(Arc::new(CpuSample));
        registry.implement_cuda(Arc::new(CudaPagedAttention)).implement_cuda(Arc::new(CudaSample));
        registry
    }
}
