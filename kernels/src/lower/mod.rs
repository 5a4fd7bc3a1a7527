//! Lowering of regions and primitive nodes to row programs, and their execution on the CPU.
//!
//! A row program computes rows of its results tile by tile. Every value lives in memory of its
//! own dtype (an operand, a result or a tile's temporary), so a fused program rounds each typed
//! value exactly where op-by-op execution would. Index remaps are strides, not steps.

mod body;
mod build;
mod check;
mod elementwise;
mod error;
mod execute;
mod finish;
mod line;
mod reduce;
mod row_program;
mod rows;
mod show;
mod structured;
mod transcendental;
mod view;

pub(crate) use body::RowBody;
pub use build::{lower_node, lower_region};
pub use error::LowerError;
pub(crate) use error::fail;
pub use execute::{RowArg, RowCall, run_rows};
pub use row_program::{
    ArgDecl, ArgKind, MapOp, Nest, Place, PlaceKind, RowProgram, RowStep, StridedAccess, Work,
};
pub(crate) use view::strides;
