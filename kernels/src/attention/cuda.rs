//! Paged attention on CUDA.

use super::PagedAttention;
use crate::cuda;
use crate::lower::LowerError;
use crate::op::OpError;
use crate::op::ScoreSpec;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, OpKernels};
use piecewise_ir::custom::CustomOpDef;

/// The launches of `piecewise.paged_attention` at a call's sizes: which kernels run, their grids
/// and how keys are divided are functions of the types, the sizes and the target alone; on
/// tensor cores, in steps of 64 rows or more, each sequence is taken by one of two kernels, by how
/// many tokens it brings, and a uniform batch is launched as the one that takes it alone.
/// Arguments: the op's operands, then its result. Can be captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, a head is wider than 256, or more than 16 heads share a
/// key-value head.
pub fn attention_kernels(call: &CudaOpCall<'_>) -> Result<OpKernels, LowerError> {
    cuda::attention_kernels(call, checked(call)?)
}

/// Other ways to launch the same: keys in more ranges, which only longer sequences than those that it is
/// measured with could need more of. In a mixed step those of sequences with few tokens, of the others, or
/// of both.
///
/// # Errors
/// As for [`attention_kernels`].
pub fn other_attention_kernels(call: &CudaOpCall<'_>) -> Result<Vec<OpKernels>, LowerError> {
    cuda::other_attention_kernels(call, checked(call)?)
}

/// What a call says of scores, if its operands fit the op.
fn checked(call: &CudaOpCall<'_>) -> Result<ScoreSpec, LowerError> {
    PagedAttention.infer(call.operands, call.attrs).map_err(LowerError)?;
    PagedAttention::spec(call.attrs).map_err(LowerError)
}

impl CudaOp for PagedAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, attention_kernels(call))
    }

    fn other_implementations(
        &self,
        call: &CudaOpCall<'_>,
    ) -> Result<Vec<CudaImplementation>, OpError> {
        let others = other_attention_kernels(call)
            .map_err(|e| OpError { op: Self::NAME.to_owned(), message: e.to_string() })?;
        Ok(others.into_iter().map(CudaImplementation::Source).collect())
    }
}
