//! Experts on CUDA.

use super::Experts;
use crate::cuda;
use crate::lower::LowerError;
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, OpKernels};
use piecewise_ir::custom::CustomOpDef;

/// The launches of `piecewise.experts` at a call's sizes, whose grids follow from the padded rows alone.
/// What a row adds up, and in which order, depends on the types and attributes alone, so that it has the
/// same bits at any size and in any company. Arguments: the op's operands, then its result. Can be
/// captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, or their rows are no multiple of one symbol.
pub fn experts_kernels(call: &CudaOpCall<'_>) -> Result<OpKernels, LowerError> {
    Experts.infer(call.operands, call.attrs).map_err(LowerError)?;
    cuda::experts_kernels(call, Experts::routing(call.attrs).map_err(LowerError)?)
}

impl CudaOp for Experts {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, experts_kernels(call))
    }
}
