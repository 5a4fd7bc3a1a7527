//! Attention and means within segments on CUDA.

use super::{SegmentAttention, SegmentMean};
use crate::cuda::{segment_attention_kernels, segment_mean_kernels};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

/// [`SegmentAttention`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaSegmentAttention;

impl CudaOp for CudaSegmentAttention {
    fn name(&self) -> &str {
        SegmentAttention::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(self.name(), segment_attention_kernels(call))
    }
}

/// [`SegmentMean`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaSegmentMean;

impl CudaOp for CudaSegmentMean {
    fn name(&self) -> &str {
        SegmentMean::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(self.name(), segment_mean_kernels(call.operands))
    }
}
