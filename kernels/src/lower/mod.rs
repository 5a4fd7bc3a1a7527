//! Lowering of regions and primitive nodes to row programs, which [`cpu::rows`](crate::cpu::rows)
//! runs.
//!
//! A row program computes rows of its results tile by tile. Every value lives in memory of its
//! own dtype (an operand, a result or a tile's temporary), so a fused program rounds each typed
//! value exactly where op-by-op execution would. Index remaps are strides, not steps.

mod body;
mod build;
mod check;
mod error;
mod finish;
mod row_program;
mod show;
mod structured;
mod view;

pub(crate) use body::RowBody;
pub use build::{lower_node, lower_region};
pub use error::LowerError;
pub(crate) use error::fail;
pub use row_program::{
    ArgDecl, ArgKind, MapOp, Nest, Place, PlaceKind, RowProgram, RowStep, StridedAccess, Work,
};
pub(crate) use row_program::{LINE, LINES_BYTES, MAX_LOOPS};
pub(crate) use view::strides;
