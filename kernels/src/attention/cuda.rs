//! Paged attention on CUDA.

use super::PagedAttention;
use crate::cuda::{OpKernels, attention_kernels, attention_with_region};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, CudaRegionBefore};

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

    fn takes_regions(&self) -> bool {
        true
    }

    fn with_region(
        &self,
        call: &CudaOpCall<'_>,
        before: &CudaRegionBefore<'_>,
    ) -> Option<OpKernels> {
        attention_with_region(call, before)
    }
}
