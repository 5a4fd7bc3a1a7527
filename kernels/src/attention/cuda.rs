//! Paged attention on CUDA.

use super::PagedAttention;
use crate::cuda::{attention_kernels, other_attention_kernels};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

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
