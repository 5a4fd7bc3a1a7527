//! What tests on a GPU share.

use crate::skip::skipped;
use piecewise_backend::cuda::{CudaDevice, CudaOptions};
use piecewise_kernels::op::OpRegistry;

/// The first CUDA device; `None` where there is none.
pub(crate) fn gpu(options: CudaOptions) -> Option<CudaDevice> {
    match CudaDevice::open(options, OpRegistry::new()) {
        Ok(device) => Some(device),
        Err(error) => {
            skipped("PIECEWISE_REQUIRE_GPU", error);
            None
        }
    }
}
