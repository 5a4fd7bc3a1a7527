//! NVRTC where it is installed.

use piecewise_backend::cuda::{Nvrtc, library_dirs};

/// NVRTC, or `None` and why on standard output; with PIECEWISE_REQUIRE_NVRTC=1 a test fails
/// where it is missing.
pub(crate) fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::open(&library_dirs(&[]), None) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            let required = std::env::var("PIECEWISE_REQUIRE_NVRTC").is_ok_and(|v| v == "1");
            assert!(!required, "PIECEWISE_REQUIRE_NVRTC=1, but {error}");
            println!("skipped: {error}");
            None
        }
    }
}
