//! The custom ops that this crate defines.

use crate::attention::{CpuPagedAttention, CudaPagedAttention, PagedAttention};
use crate::inputs;
use crate::op::OpRegistry;
use crate::sampling::{
    ControlledSample, CpuControlledSample, CpuSample, CudaControlledSample, CudaSample, Sample,
};
use crate::segments::{
    CpuSegmentAttention, CpuSegmentMean, CudaSegmentAttention, CudaSegmentMean, SegmentAttention,
    SegmentMean,
};
use std::sync::Arc;

impl OpRegistry {
    /// The ops that this crate defines.
    pub fn builtin() -> Self {
        let mut registry = Self::new();
        registry.declare_inputs(inputs::DECLARED_BY, inputs::engine_inputs());
        registry.declare_inputs(PagedAttention::NAME, PagedAttention::inputs());
        registry.declare_inputs(Sample::NAME, Sample::inputs());
        registry.declare_inputs(ControlledSample::NAME, ControlledSample::inputs());
        registry.define(Arc::new(ControlledSample));
        registry.implement_cpu(Arc::new(CpuControlledSample));
        registry.implement_cuda(Arc::new(CudaControlledSample));
        registry.define(Arc::new(PagedAttention)).define(Arc::new(Sample));
        registry.define(Arc::new(SegmentAttention)).define(Arc::new(SegmentMean));
        registry.implement_cpu(Arc::new(CpuPagedAttention)).implement_cpu(Arc::new(CpuSample));
        registry.implement_cpu(Arc::new(CpuSegmentAttention));
        registry.implement_cpu(Arc::new(CpuSegmentMean));
        registry.implement_cuda(Arc::new(CudaPagedAttention)).implement_cuda(Arc::new(CudaSample));
        registry.implement_cuda(Arc::new(CudaSegmentAttention));
        registry.implement_cuda(Arc::new(CudaSegmentMean));
        registry
    }
}
