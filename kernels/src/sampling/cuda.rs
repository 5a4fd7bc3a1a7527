//! Sampling on CUDA.

use super::{ControlledSample, Sample};
use crate::cuda::{controlled_sample_kernels, sample_kernels};
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

impl CudaOp for Sample {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, sample_kernels(call.operands))
    }
}

impl CudaOp for ControlledSample {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, controlled_sample_kernels(call.operands))
    }
}
