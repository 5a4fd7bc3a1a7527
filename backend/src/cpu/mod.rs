//! The CPU backend: row programs, matmuls and custom ops over memory at fixed addresses.
//!
//! A captured graph is a frozen list of calls with raw addresses; replay sees nothing else, so
//! an address bug shows in an ordinary test.

mod capture;
mod captured;
mod compiler;
mod device;
mod image;
mod launch;
pub(crate) mod materialize;
mod measure;
mod memory;
mod pages;
mod profile;
mod program;
mod random;

pub use capture::CaptureScope;
pub use captured::CpuCaptured;
pub use compiler::CpuCompiler;
pub use device::CpuDevice;
pub use profile::LaunchTime;
pub use program::CpuProgram;
pub use random::normal_numbers;
