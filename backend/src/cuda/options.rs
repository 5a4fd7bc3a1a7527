//! What is said of a CUDA device when it is opened.

use std::path::PathBuf;

/// How a CUDA device is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which device, as the driver numbers them.
    pub ordinal: u32,
    /// Folders to search for NVRTC and cuBLASLt before the system's own.
    pub library_dirs: Vec<PathBuf>,
    /// Wait after every launch, so that a failure names the launch that caused it. For debugging.
    pub synchronous: bool,
    /// Where every captured graph is written for graphviz; nowhere if unset.
    pub dot_dir: Option<PathBuf>,
    /// No kernel starts before the kernel ahead of it ends. For debugging.
    pub serial: bool,
    /// Compile kernels whose blocks note where and when they run, for
    /// [`crate::device::measure::MeasuredDevice::block_times`]. What is compiled so has keys of its own.
    pub stamps: bool,
}
