//! Lowering of regions to kernels, attention, sampling and matmul with their CPU twins, and the
//! traits by which custom ops are implemented.
#![allow(unsafe_code, reason = "kernels work on raw addresses; every block states why it is sound")]

pub mod attention;
pub mod cpu;
pub mod cuda;
pub mod lower;
pub mod op;
pub mod sampling;
pub mod step;
