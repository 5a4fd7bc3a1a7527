//! Kernels as CUDA C++ with their launch recipes. Text only: nothing here needs a device or a
//! toolkit, and the same input gives the same bytes.

mod index;
mod recipe;
mod region;

pub use recipe::{Blocks, GridAxis, GridError, LaunchRecipe, Param, Scalar};
pub use region::{OperandRole, node_kernel, region_kernel};

/// The text of `prelude.cuh`, which every source includes: given to the compiler in memory.
pub const PRELUDE: &str = include_str!("prelude.cuh");
