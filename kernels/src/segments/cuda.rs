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
        segment_attention_kernels(call)
            .map(CudaImplementation::Source)
            .map_err(|e| OpError { op: self.name().to_owned(), message: e.to_string() })
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
        segment_mean_kernels(call.operands)
            .map(CudaImplementation::Source)
            .map_err(|e| OpError { op: self.name().to_owned(), message: e.to_string() })
    }
}
