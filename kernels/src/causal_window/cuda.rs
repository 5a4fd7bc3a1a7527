//! Windows of rows on CUDA.

use super::CausalWindow;
use crate::cuda;
use crate::lower::LowerError;
use crate::op::OpError;
use crate::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, OpKernels};
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::types::TensorType;

/// The launches of `piecewise.causal_window`: one writes the windows, then one the slots. Arguments: the op's
/// operands, then its result. Can be captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, or no symbol counts the sequences.
pub fn causal_window_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    CausalWindow.infer(operands, &Attrs::new()).map_err(LowerError)?;
    cuda::causal_window_kernels(operands)
}

impl CudaOp for CausalWindow {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        CudaImplementation::own(Self::NAME, causal_window_kernels(call.operands))
    }
}
