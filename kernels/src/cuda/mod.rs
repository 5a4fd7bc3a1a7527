//! Kernels as CUDA C++ with their launch recipes. Text only: nothing here needs a device or a
//! toolkit, and the same input gives the same bytes.

mod attention;
mod beside;
mod index;
mod matmul;
mod recipe;
mod region;
mod sampling;
mod segments;
mod text;
mod wgmma;

pub use attention::{attention_kernels, other_attention_kernels};
pub use beside::BesideOp;
pub use matmul::{
    AfterProduct, BeforeProduct, MatMulSpec, RING_ROWS, RingForm, STREAM_ROWS, TENSOR_ROWS,
};
pub use recipe::{
    Blocks, GridAxis, GridError, LaunchRecipe, OpKernels, Param, Scalar, TensorBoxes,
};
pub use region::{
    OperandRole, PartParam, RegionPart, narrow_region_kernel, node_kernel, region_kernel,
};
pub use sampling::{controlled_sample_kernels, sample_kernels};
pub use segments::{segment_attention_kernels, segment_mean_kernels};

/// The text of `prelude.cuh`, which every source includes: given to the compiler in memory.
pub const PRELUDE: &str = include_str!("prelude.cuh");
