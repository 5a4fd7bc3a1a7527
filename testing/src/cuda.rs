//! CUDA devices over drivers that are not the machine's own, or not it alone.

use crate::driver::{Faults, FaultyDriver, SimulatedDriver};
use piecewise_backend::cuda::driver::Driver;
use piecewise_backend::cuda::driver::system::SystemDriver;
use piecewise_backend::cuda::{CudaDevice, CudaError, CudaOptions, LazyNvrtc, Nvrtc, library_dirs};
use piecewise_kernels::op::OpRegistry;
use std::sync::{Arc, OnceLock};

/// The same NVRTC, that compiles in half the time, to code that is slow and that nothing is to run: what
/// it takes is the same. Only from version 13 on.
pub fn compiling_fast(nvrtc: Nvrtc) -> Nvrtc {
    if nvrtc.version().0 >= 13 { nvrtc.with_option("--Ofast-compile=max") } else { nvrtc }
}

/// A device without a GPU, for an H100's architecture: memory is real, kernels and products of cuBLASLt
/// do nothing.
///
/// # Errors
/// When opening it is planned to fail.
pub fn simulated(
    options: CudaOptions,
    registry: OpRegistry,
    faults: &Faults,
) -> Result<CudaDevice, CudaError> {
    static NVRTC: OnceLock<LazyNvrtc> = OnceLock::new();
    let nvrtc = NVRTC.get_or_init(|| match Nvrtc::open(&library_dirs(&[]), None) {
        Ok(nvrtc) => compiling_fast(nvrtc).into(),
        Err(_) => LazyNvrtc::missing(),
    });
    let inner = Arc::new(SimulatedDriver::without_notes());
    let driver = FaultyDriver { inner, faults: faults.clone() };
    CudaDevice::over(Arc::new(driver), nvrtc.clone(), options, registry)
}

/// [`CudaDevice::open`], over a driver whose calls fail as planned.
///
/// # Errors
/// As there.
pub fn open_faulty(
    options: CudaOptions,
    registry: OpRegistry,
    faults: &Faults,
) -> Result<CudaDevice, CudaError> {
    let inner = SystemDriver::open()?;
    let major = inner.version().map(|version| version.major());
    let nvrtc = LazyNvrtc::new(library_dirs(&options.library_dirs), major);
    let driver = FaultyDriver { inner: Arc::new(inner), faults: faults.clone() };
    CudaDevice::over(Arc::new(driver), nvrtc, options, registry)
}
