//! Sampling on CUDA.

use super::Sample;
use crate::cuda::sample_kernels;
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

/// [`Sample`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaSample;

impl CudaOp for CudaSample {
    fn name(&self) -> &str {
        Sample::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        sample_kernels(call.operands)
            .map(CudaImplementation::Source)
            .map_err(|e| OpError { op: self.name().to_owned(), message: e.to_string() })
    }
}
