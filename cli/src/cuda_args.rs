//! Flags for looking into a CUDA device.

use super::set_keys::{put, turn_on};
use piecewise_runtime::config::ConfigLayers;
use std::path::PathBuf;

/// The keys of the table `[cuda]`.
#[derive(Debug, clap::Args)]
pub(crate) struct CudaArgs {
    /// Wait for every launch on a CUDA device, so that a failure names the launch that caused it.
    #[arg(long)]
    cuda_synchronous: bool,
    /// Start no kernel on a CUDA device before the one ahead of it has ended.
    #[arg(long)]
    cuda_serial: bool,
    /// Let the driver write every graph that is captured into this folder, for graphviz.
    #[arg(long, value_name = "DIR")]
    cuda_dot_dir: Option<PathBuf>,
    /// Compile CUDA kernels with the lines of their sources, for a profiler such as Nsight Compute.
    #[arg(long)]
    cuda_line_info: bool,
}

impl CudaArgs {
    /// The flags on top of a configuration.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let layers = turn_on(layers, "cuda.synchronous", self.cuda_synchronous)?;
        let layers = turn_on(layers, "cuda.serial", self.cuda_serial)?;
        let layers = put(layers, "cuda.dot_dir", self.cuda_dot_dir.as_ref())?;
        turn_on(layers, "cuda.line_info", self.cuda_line_info)
    }
}
