//! What tests on a GPU share.

use piecewise_backend::cuda::{CudaDevice, CudaOptions};
use piecewise_kernels::op::OpRegistry;

/// The first CUDA device; `None`, with the reason printed, where there is none. With
/// PIECEWISE_REQUIRE_GPU=1 that is a failure.
pub(crate) fn gpu(options: CudaOptions) -> Option<CudaDevice> {
    match CudaDevice::open(options, OpRegistry::new()) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("PIECEWISE_REQUIRE_GPU").is_ok_and(|v| v == "1");
            assert!(!required, "PIECEWISE_REQUIRE_GPU=1, but {error}");
            println!("skipped: {error}");
            None
        }
    }
}
