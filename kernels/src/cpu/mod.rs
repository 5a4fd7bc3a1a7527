//! CPU math over plain slices: conversions, matmul, attention, sampling.
//!
//! Nothing here knows the graph. Every function is pure: same inputs, same bits, whatever the
//! number of threads, padding rows or other sequences in the call. Only a different instruction
//! set ([`Isa`]) may change the last bits of a float result.
//!
//! Rules that every entry point keeps:
//! - **No heap allocation.** Temporaries live in scratch that the caller gives (aligned to
//!   [`SCRATCH_ALIGN`], sized by the `*_scratch_bytes` function beside each entry point). What
//!   allocates is rayon, which spreads the blocks over threads: the first call outside of any pool
//!   starts the global one, a worker registers once with its queues' collector when it first
//!   steals, and a call that enters a pool from outside takes one of its injector's cells, which
//!   come 63 to an allocation. A call made inside a pool (`ThreadPool::install`) avoids the last.
//! - **Checked before read.** Shapes, lengths and page ids are checked first; a bad one is a
//!   [`CpuMathError`] and no output byte has changed.
//! - **Padding is not touched.** Rows past the true count are neither read nor written.
//!
//! Work is cut into blocks whose borders depend on the problem alone; threads of the current
//! rayon pool take blocks one by one, and no sum is ever split between two blocks.

mod dot;
pub(crate) mod element;
mod error;
pub(crate) mod parallel;
mod scratch;
pub(crate) mod simd;
#[cfg(test)]
mod testing;

pub mod attention;
pub mod convert;
pub mod matmul;
pub mod philox;
pub mod rows;
pub mod sampling;
pub mod team;

pub use crate::op::{FloatSlice, FloatSliceMut};
pub use error::CpuMathError;
use error::at_least;
pub use scratch::SCRATCH_ALIGN;
pub use simd::Isa;
