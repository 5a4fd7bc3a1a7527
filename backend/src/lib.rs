//! Compiler and Device: compile, bind, launch, capture, replay and device memory.
#![allow(unsafe_code, reason = "devices work on raw addresses; every block states why it is sound")]

// The doubles of `cuda::testing` call it so.
#[cfg(test)]
extern crate self as piecewise_backend;

pub mod artifact;
mod binding;
pub mod compiler;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod hooks;
mod lowering;
mod mapped_file;
mod matmul;
pub mod nvtx;
pub mod store;
pub mod tuning;
mod weight_plan;
pub mod weights;

pub use mapped_file::MappedFile;

/// A digest of the sources of this crate, tests left out: what is lowered with it is a function of
/// it, so that a change of the code never finds what other code has made.
pub const SOURCE_DIGEST: &str = env!("PIECEWISE_SOURCE_DIGEST");
