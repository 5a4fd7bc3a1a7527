//! Sampling on CUDA.

use super::{ControlledSample, Sample};
use crate::cuda::{controlled_sample_kernels, sample_kernels};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

/// [`Sample`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaSample;

/// [`ControlledSample`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaControlledSample;

impl CudaOp for CudaSample {
    fn name(&self) -> &str {
        Sample::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(self.name(), sample_kernels(call.operands))
    }
}

impl CudaOp for CudaControlledSample {
    fn name(&self) -> &str {
        ControlledSample::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(self.name(), controlled_sample_kernels(call.operands))
    }
}
