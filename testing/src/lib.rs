//! Test doubles and random inputs for the tests of the workspace: drivers and devices that fail as
//! planned or have no GPU, a compiler that absorbs, plans that are wrong, random graphs.
//!
//! Crates name it among their development dependencies alone, so that nothing published has any of it.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

pub mod absorbing;
pub mod artifacts;
pub mod cuda;
pub mod driver;
pub mod faults;
pub mod graphs;
pub mod lifetimes;

#[cfg(test)]
mod graph_tests;

pub use absorbing::{AbsorbingCompiler, absorbing_ops};
pub use driver::{CallFault, Faults, FaultyDriver, SimulatedDriver, host_time};
pub use faults::{DeviceFault, DeviceFaults, FaultKind, FaultPoint, FaultyDevice};
pub use graphs::*;
