//! Sampling on CUDA.

use super::{ControlledSample, Sample};
use crate::cuda::{OpKernels, controlled_sample_kernels, sample_kernels};
use crate::lower::LowerError;
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};

/// [`Sample`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaSample;

/// [`ControlledSample`] on CUDA; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaControlledSample;

fn source(op: &str, kernels: Result<OpKernels, LowerError>) -> Result<CudaImplementation, OpError> {
    kernels
        .map(CudaImplementation::Source)
        .map_err(|e| OpError { op: op.to_owned(), message: e.to_string() })
}

impl CudaOp for CudaSample {
    fn name(&self) -> &str {
        Sample::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        source(Sample::NAME, sample_kernels(call.operands))
    }
}

impl CudaOp for CudaControlledSample {
    fn name(&self) -> &str {
        ControlledSample::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        source(ControlledSample::NAME, controlled_sample_kernels(call.operands))
    }
}
