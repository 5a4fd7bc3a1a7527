//! Attention and means within segments on CUDA.

use super::{SegmentAttention, SegmentMean};
use crate::cuda;
use crate::lower::LowerError;
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, OpKernels};
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::types::TensorType;

/// The launch of `piecewise.segment_attention` at a call's sizes. What a row adds up, and in which
/// order, depends on the types, the attributes and the target alone, so that it has the same bits at
/// any size. Arguments: the op's operands, then its result. Can be captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, no symbol counts the segments, or a head is wider than 256.
pub fn segment_attention_kernels(call: &CudaOpCall<'_>) -> Result<OpKernels, LowerError> {
    SegmentAttention.infer(call.operands, call.attrs).map_err(LowerError)?;
    let spec = SegmentAttention::spec(call.attrs).map_err(LowerError)?;
    cuda::segment_attention_kernels(call, spec)
}

/// The launch of `piecewise.segment_mean`. Arguments: the op's operands, then its result.
///
/// # Errors
/// When the operands do not fit the op, or no symbol counts the segments.
pub fn segment_mean_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    SegmentMean.infer(operands, &Attrs::new()).map_err(LowerError)?;
    cuda::segment_mean_kernels(operands)
}

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
