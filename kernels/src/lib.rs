//! Lowering of regions to kernels, attention, sampling and matmul with their CPU twins, and the
//! traits by which custom ops are implemented.
#![allow(unsafe_code, reason = "kernels work on raw addresses; every block states why it is sound")]

pub mod attention;
mod builtin;
pub mod causal_window;
pub mod cpu;
pub mod cuda;
pub mod experts;
pub mod inputs;
pub mod lower;
pub mod op;
pub mod roles;
pub mod sampling;
pub mod segments;
pub mod step;

/// A digest of the sources of this crate, tests left out: what is lowered with it is a function of
/// it, so that a change of the code never finds what other code has made.
pub const SOURCE_DIGEST: &str = env!("PIECEWISE_SOURCE_DIGEST");
