//! A start measures nothing; who tunes measures everything, and every start takes what came of it.

use crate::small_decoder::{Setup, WEIGHTS};
use crate::target::{Cuda, SimulatedCuda, Target};
use piecewise::assembly::Assembly;
use piecewise::device::{DeviceSpec, OpenDevice};
use piecewise_backend::cuda::CudaOptions;
use piecewise_backend::store::{MemoryStore, Store};
use piecewise_backend::tuning::TuningReport;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::device::{Gain, Verdict, WaysOrigin};
use piecewise_runtime::words::GraphMode;
use piecewise_testing::Faults;
use piecewise_testing::cuda::simulated;
use std::sync::Arc;

/// Of a model with the sizes 1 and 4 alone, in pieces.
fn of(device: &OpenDevice, store: &Arc<MemoryStore>) -> Assembly {
    let store: Arc<dyn Store> = store.clone();
    let assembly = Assembly::graph(Setup::default().graph()).weights(WEIGHTS).on(device);
    let assembly = assembly.store(store).capture_sizes([1, 4]).decode_batch_sizes([1]);
    assembly.graph_mode(GraphMode::Piecewise)
}

/// What a start with default settings says of its choices.
fn start(device: &OpenDevice, store: &Arc<MemoryStore>) -> (TuningReport, Vec<Gain>) {
    let engine = of(device, store).engine().unwrap();
    (engine.model().statistics().tuning, engine.model().gains())
}

/// The same but for what a text of decimals loses of a number.
fn assert_same(found: &[Gain], expected: &[Gain]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let Gain { before_us, after_us, spread, .. } = *expected;
        let pairs =
            [(found.before_us, before_us), (found.after_us, after_us), (found.spread, spread)];
        assert!(pairs.iter().all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs()), "{pairs:?}");
        assert_eq!(Gain { before_us, after_us, spread, ..found.clone() }, *expected);
    }
}

/// Holds the three, for a device whose parts have several ways, or of whose steps none has.
fn is_remembered(device: &OpenDevice, has_ways: bool) {
    let store = Arc::new(MemoryStore::new());
    let (before, nothing) = start(device, &store);
    assert_eq!((before.measured, before.loaded, nothing), (0, 0, Vec::new()), "a start measures");
    assert_eq!(before.unmeasured > 0, has_ways);
    let tuned = of(device, &store).plan().unwrap().tuned().unwrap();
    let report = tuned.report;
    assert_eq!((report.measured, report.unmeasured, report.refused), (before.unmeasured, 0, 0));
    assert!(tuned.gains.len() > report.measured, "steps in pieces, too: {:?}", tuned.gains);
    for gain in &tuned.gains {
        assert_eq!(gain.origin, WaysOrigin::Measured);
        let is_kept = gain.verdict == Verdict::Kept;
        assert!(!is_kept || gain.share() > gain.spread, "{gain:?}");
    }
    let known = |gain: &Gain| Gain { origin: WaysOrigin::Remembered, ..gain.clone() };
    let known = Vec::from_iter(tuned.gains.iter().map(known));
    let (after, gains) = start(device, &store);
    let expected = (0, report.measured, 0);
    assert_eq!((after.measured, after.loaded, after.unmeasured), expected);
    assert_same(&gains, &known);
    // Who tunes again measures nothing twice.
    let again = of(device, &store).plan().unwrap().tuned().unwrap();
    assert_eq!(again.report.measured, 0);
    assert_same(&again.gains, &known);
    // Sizes that a step would have lowered late are measured here, where nobody waits.
    let late = of(device, &store).compile_sizes([3]).plan().unwrap().tuned().unwrap();
    let is_late = |gain: &Gain| gain.size == "3" && gain.origin == WaysOrigin::Measured;
    assert_eq!(late.gains.iter().any(is_late), has_ways, "{:?}", late.gains);
}

#[test]
fn cpu_what_was_tuned_is_what_a_start_takes() {
    is_remembered(&DeviceSpec::Cpu.open(1).unwrap(), false);
}

#[test]
fn simulated_cuda_what_was_tuned_is_what_a_start_takes() {
    if SimulatedCuda::is_there() {
        let device =
            simulated(CudaOptions::default(), OpRegistry::new(), &Faults::default()).unwrap();
        is_remembered(&device.into(), true);
    }
}

#[test]
fn cuda_what_was_tuned_is_what_a_start_takes() {
    if Cuda::is_there() {
        is_remembered(&DeviceSpec::Cuda(0).open(1).unwrap(), true);
    }
}
