//! Paged attention on CUDA.

use super::PagedAttention;
use crate::cuda::{attention_kernels, other_attention_kernels};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

/// [`PagedAttention`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaPagedAttention;

impl CudaOp for CudaPagedAttention {
    fn name(&self) -> &str {
        PagedAttention::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(self.name(), attention_kernels(call))
    }

    fn other_implementations(
        &self,
        call: &CudaOpCall<'_>,
    ) -> Result<Vec<CudaImplementation>, OpError> {
        let others = other_attention_kernels(call)
            .map_err(|e| OpError { op: self.name().to_owned(), message: e.to_string() })?;
        Ok(others.into_iter().map(CudaImplementation::Source).collect())
    }
}
