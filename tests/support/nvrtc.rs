//! NVRTC where it is installed.

use crate::skip::skipped;
use piecewise_backend::cuda::{Nvrtc, library_dirs};

/// NVRTC, or `None` where it is missing.
pub(crate) fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::open(&library_dirs(&[]), None) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            skipped("PIECEWISE_REQUIRE_NVRTC", error);
            None
        }
    }
}
