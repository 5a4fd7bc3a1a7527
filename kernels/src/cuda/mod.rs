//! Kernels as CUDA C++ with their launch recipes. Text only: nothing here needs a device or a
//! toolkit, and the same input gives the same bytes.

mod attention;
mod beside;
mod causal_window;
mod experts;
mod index;
mod matmul;
mod region;
mod sampling;
mod segments;
mod text;
mod wgmma;

pub use crate::op::cuda::{
    GridAxis, LaunchRecipe, OpKernels, OperandRole, Param, Scalar, TensorBoxes,
};
pub use crate::op::{Blocks, GridError};
pub(crate) use attention::{kernels as attention_kernels, others as other_attention_kernels};
pub use beside::BesideOp;
pub(crate) use causal_window::causal_window_kernels;
pub(crate) use experts::experts_kernels;
pub use matmul::{
    AfterProduct, BeforeProduct, MatMulSpec, RING_ROWS, RingForm, STREAM_ROWS, TENSOR_ROWS,
};
pub use region::{PartParam, RegionPart, narrow_region_kernel, node_kernel, region_kernel};
pub use sampling::{controlled_sample_kernels, sample_kernels};
pub(crate) use segments::{
    attention_kernels as segment_attention_kernels, mean_kernels as segment_mean_kernels,
};

use crate::lower::LowerError;
use crate::op::OpError;
use crate::op::cuda::CudaImplementation;

/// The text of `prelude.cuh`, which every source includes: given to the compiler in memory.
pub const PRELUDE: &str = include_str!("prelude.cuh");

impl CudaImplementation {
    /// The kernels of an op of this crate.
    pub(crate) fn own(op: &str, kernels: Result<OpKernels, LowerError>) -> Result<Self, OpError> {
        let failed = |e: LowerError| OpError { op: op.to_owned(), message: e.to_string() };
        kernels.map(Self::Source).map_err(failed)
    }
}
