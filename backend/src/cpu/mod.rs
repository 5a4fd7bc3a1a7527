//! The CPU backend: row programs, matmuls and custom ops over memory at fixed addresses.
//!
//! A captured graph is a frozen list of calls with raw addresses; replay sees nothing else, so
//! an address bug shows in an ordinary test.

#[cfg(piecewise_testing)]
mod absorbing;
mod capture;
mod captured;
mod compiler;
mod device;
#[cfg(piecewise_testing)]
mod faults;
mod image;
mod launch;
pub(crate) mod materialize;
mod measure;
mod memory;
mod pages;
mod profile;
mod program;
mod random;

#[cfg(piecewise_testing)]
pub use absorbing::AbsorbingCompiler;
pub use capture::CaptureScope;
pub use captured::CpuCaptured;
pub use compiler::CpuCompiler;
pub use device::CpuDevice;
#[cfg(piecewise_testing)]
pub use faults::{CpuFault, CpuFaults, FaultKind, FaultPoint};
pub use profile::LaunchTime;
pub use program::CpuProgram;
