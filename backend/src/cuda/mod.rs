//! The CUDA backend. The driver, NVRTC and cuBLASLt are found at run time, so that one program
//! runs with and without them.
//!
//! The bindings give types, constants and signatures at their version 12.4, the lowest that has
//! every function used here. Older functions keep their meaning in newer drivers, so that this
//! runs from CUDA 12.4 on; an older driver is refused by version before anything else is called.
//! Functions are resolved here and not by the bindings, whose own loading panics where a library
//! or function is missing and looks for toolkit stubs before the driver.

mod absorb;
mod alternatives;
mod bound;
mod capture;
mod captured;
mod code;
mod compiler;
mod context;
mod cubin;
mod custom;
mod device;
mod disassembly;
pub mod driver;
mod error;
mod event;
mod followed;
mod graph;
mod groups;
mod host;
mod image;
mod kernel_cache;
mod lazy_nvrtc;
mod library;
mod lt;
mod lt_api;
mod lt_handle;
mod lt_view;
mod materialize;
mod matmul;
mod measure;
mod memory;
mod module;
mod nvrtc;
mod occupancy;
mod options;
mod prepared;
mod probe;
mod product_ways;
mod program;
mod site;
mod stamps;
mod stream;
#[cfg(test)]
#[path = "../../../testing/src/driver/mod.rs"]
pub mod testing;
#[cfg(test)]
mod tests;
mod tuning;
mod why;

pub use crate::matmul::Matmul;
pub use captured::CudaCaptured;
pub use code::Code;
pub use compiler::CudaCompiler;
pub use cubin::{CubinKernel, cubin_kernels};
pub use device::CudaDevice;
pub use error::{CallError, CudaError, CudaVersion};
pub use event::CudaEvent;
pub use graph::GraphSummary;
pub use image::{CudaImage, HostImage, KernelImage};
pub use kernel_cache::KIND as KERNEL_KIND;
pub use lazy_nvrtc::LazyNvrtc;
pub use library::{CudaLibrary, LIBRARY_DIRS_VARIABLE, LibraryError, library_dirs};
pub use lt_api::LtError;
pub use materialize::WEIGHT_KERNELS;
pub use matmul::MatmulProblem;
pub use measure::BANDWIDTH_KERNEL;
pub use nvrtc::{Arch, Nvrtc, NvrtcError, Source};
pub use options::CudaOptions;
pub use probe::{CublasLtReport, CudaProbe, DeviceReport, DriverReport, NvrtcReport, ProbeRow};
pub use program::CudaProgram;
