//! NVRTC where it is installed.

use crate::skip::skipped;
use piecewise_backend::cuda::{Nvrtc, library_dirs};
use piecewise_testing::cuda::compiling_fast;

/// NVRTC, or `None` where it is missing. What it makes is not run where this is asked for, so that it
/// need not be optimized.
pub(crate) fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::open(&library_dirs(&[]), None) {
        Ok(nvrtc) => Some(compiling_fast(nvrtc)),
        Err(error) => {
            skipped("PIECEWISE_REQUIRE_NVRTC", error);
            None
        }
    }
}
