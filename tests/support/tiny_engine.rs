//! An engine of the tiny model as servers have it, on a device that fails as a test says.

use piecewise::assembly::Assembly;
use piecewise::device::{DeviceSpec, OpenDevice};
use piecewise_backend::cpu::CpuDevice;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::engine::Engine;
use piecewise_testing::{DeviceFaults, FaultyDevice};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny-qwen3")
}

/// Prompts, and the tokens that the reference generates after them.
pub(crate) fn golden() -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(folder().join("golden.json")).unwrap()).unwrap()
}

pub(crate) fn tiny_engine(faults: DeviceFaults, max_num_seqs: u64) -> Engine {
    engine_of(&folder(), "f32", faults, max_num_seqs)
}

/// Of a folder, in a dtype.
pub(crate) fn engine_of(
    folder: &Path,
    dtype: &str,
    faults: DeviceFaults,
    max_num_seqs: u64,
) -> Engine {
    let device = CpuDevice::new(Arc::new(OpRegistry::new()), 2).unwrap();
    let device = OpenDevice::new(DeviceSpec::Cpu, FaultyDevice::new(device, faults));
    Assembly::folder(folder)
        .unwrap()
        .on(&device)
        .set("dtype", dtype)
        .set("cache.enabled", false)
        .set("sampling_controls", true)
        .max_num_tokens(64)
        .max_num_seqs(max_num_seqs)
        .capture_sizes([1, max_num_seqs, 64])
        .engine()
        .unwrap()
}
