//! What a GPU has no room for is refused before anything of it is taken, and a share of what is free is
//! what is taken, by the driver's own figure.

use crate::small_decoder::{Setup, WEIGHTS};
use crate::target::{Cuda, SimulatedCuda, Target, in_own_process};
use piecewise::assembly::{Assembly, AssemblyError};
use piecewise::device::{DeviceSpec, OpenDevice};
use piecewise_backend::cuda::CudaOptions;
use piecewise_backend::store::MemoryStore;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::op::OpRegistry;
use piecewise_testing::{CallFault, Faults, cuda};
use std::sync::{Arc, OnceLock};

/// What else happens on a device while a model is refused.
const NOISE: u64 = 2 << 20;
/// Code, graphs and granules, of which the ledger says about as much.
const NEAR: u64 = 64 << 20;
/// What backing is rounded up to, for each of some parts of a model, and graphs and code, which a simulated
/// driver takes no memory for.
const GRANULES: u64 = 16 << 20;

fn of(device: &OpenDevice, kv_rows: u64) -> Assembly {
    static KERNELS: OnceLock<Arc<MemoryStore>> = OnceLock::new();
    let store = Arc::clone(KERNELS.get_or_init(Arc::default));
    let graph = Setup { kv_rows: Some(kv_rows), ..Setup::default() }.graph();
    let assembly = Assembly::graph(graph).weights(WEIGHTS).on(device).store(store);
    assembly.set("tune", "off").capture_sizes([1, 8])
}

/// What no device has room for, by a budget: a pool is as long as there is room where nothing is set.
fn beyond(device: &OpenDevice) -> Assembly {
    of(device, 1 << 30).set("memory_budget", 1u64 << 45)
}

/// Holds that what has no room is refused, and that no more than `noise` bytes of the device are taken after it.
fn refuse_what_has_no_room(device: &OpenDevice, noise: u64) {
    // What the driver takes with a first model stays.
    drop(of(device, 1 << 12).engine().unwrap());
    let before = device.free_bytes().unwrap();
    let is_untouched = || before.abs_diff(device.free_bytes().unwrap()) <= noise;
    let error = beyond(device).engine().unwrap_err();
    assert!(is_untouched(), "{} of {before} bytes are left", device.free_bytes().unwrap());
    let AssemblyError::DoesNotFit { needed, free, rows, .. } = error else { panic!("{error}") };
    assert!(needed > free && free.abs_diff(before) <= noise, "{needed} of {free}, {before}");
    let total = |rows| {
        let planned = of(device, rows).plan().unwrap();
        planned.artifacts().unwrap();
        planned.ledger().unwrap().total()
    };
    assert!(total(rows) <= free && total(rows + PAGE_ROWS) > free, "{rows} rows of {free}");
    let error = of(device, 1 << 12).set("memory_fraction", 1e-9).plan().unwrap_err();
    assert!(error.to_string().contains("memory_fraction = "), "{error}");
    assert!(is_untouched(), "{} of {before} bytes are left", device.free_bytes().unwrap());
}

/// Holds that a model takes shares of what is free, to `near` bytes.
fn take_shares(device: &OpenDevice, near: u64) {
    drop(of(device, 1 << 12).engine().unwrap());
    for share in [0.05, 0.25] {
        let before = device.free_bytes().unwrap();
        let most = (before as f64 * share) as u64;
        let engine = of(device, 1 << 28).set("memory_fraction", share).engine().unwrap();
        let (total, left) = (engine.model().ledger().total(), device.free_bytes().unwrap());
        assert!(total <= most && total + near >= most, "{total} bytes of {most}");
        let taken = before.saturating_sub(left);
        assert!(taken.abs_diff(total) <= near, "{taken} bytes, {total} said");
        println!("{share} of {before} free bytes: {total} in the ledger, {taken} taken");
        drop(engine);
        assert!(before.abs_diff(device.free_bytes().unwrap()) <= near);
    }
}

#[test]
fn cuda_what_has_no_room_is_refused_before_anything_is_taken() {
    const TEST: &str = "refusals::cuda_what_has_no_room_is_refused_before_anything_is_taken";
    if !Cuda::is_there() {
        return;
    }
    in_own_process(TEST, || {
        refuse_what_has_no_room(&DeviceSpec::Cuda(0).open(1).unwrap(), NOISE);
    });
}

#[test]
fn cuda_a_share_of_what_is_free_is_what_is_taken() {
    const TEST: &str = "refusals::cuda_a_share_of_what_is_free_is_what_is_taken";
    if !Cuda::is_there() {
        return;
    }
    in_own_process(TEST, || take_shares(&DeviceSpec::Cuda(0).open(1).unwrap(), NEAR));
}

/// A device with the memory of a simulated driver, which nobody else takes of.
fn simulated(faults: &Faults) -> Option<OpenDevice> {
    let device = || cuda::simulated(CudaOptions::default(), OpRegistry::new(), faults).unwrap();
    SimulatedCuda::is_there().then(|| device().into())
}

#[test]
fn simulated_cuda_what_has_no_room_is_refused_before_anything_is_taken() {
    let faults = Faults::default();
    let Some(device) = simulated(&faults) else { return };
    refuse_what_has_no_room(&device, 0);
    // Nor is any asked for, which would be refused in other words.
    for call in ["cuMemCreate", "cuMemAlloc_v2", "cuMemHostRegister_v2", "cuMemAddressReserve"] {
        faults.fail(CallFault::always(call, 2));
    }
    let error = beyond(&device).engine().unwrap_err();
    assert!(matches!(error, AssemblyError::DoesNotFit { .. }), "{error}");
    let error = of(&device, 1 << 12).engine().unwrap_err();
    assert!(!matches!(error, AssemblyError::DoesNotFit { .. }), "{error}");
}

#[test]
fn simulated_cuda_a_share_of_what_is_free_is_what_is_taken() {
    if let Some(device) = simulated(&Faults::default()) {
        take_shares(&device, GRANULES);
    }
}
