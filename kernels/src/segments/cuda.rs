//! Attention and means within segments on CUDA.

use super::{SegmentAttention, SegmentMean};
use crate::cuda::{segment_attention_kernels, segment_mean_kernels};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

impl CudaOp for SegmentAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, segment_attention_kernels(call))
    }
}

impl CudaOp for SegmentMean {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, segment_mean_kernels(call.operands))
    }
}
