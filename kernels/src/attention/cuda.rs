//! Paged attention on CUDA.

use super::PagedAttention;
use crate::cuda::attention_kernels;
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
        attention_kernels(call)
            .map(CudaImplementation::Source)
            .map_err(|e| OpError { op: self.name().to_owned(), message: e.to_string() })
    }
}
