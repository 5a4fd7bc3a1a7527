//! Memory that really runs out: a model that finds no room, one that finds none when it is resumed, and
//! captures where nothing is left. Others on the device would notice, so each has a process and a time
//! of its own.

use crate::recovery;
use crate::slot_model::{SlotSetup, request};
use crate::small_decoder::Setup;
use crate::target::{Cpu, Cuda, Target, in_own_process};
use piecewise_backend::cuda::{CudaDevice, CudaOptions};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::engine::Engine;
use piecewise_runtime::mode::GraphMode;
use piecewise_runtime::model::{CaptureWhen, Model, ModelError, SuspendedWeights};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A model whose KV pool alone is 256 MiB.
fn large() -> Setup {
    Setup { kv_rows: Some(1 << 20), ..Setup::default() }
}

fn is_out_of_memory(error: &ModelError) -> bool {
    matches!(error, ModelError::Device(DeviceError::OutOfMemory { .. }))
}

/// Takes all of the GPU's memory but so many bytes, until it is dropped.
fn take_all_but(bytes: u64) -> CudaDevice {
    let mut device = CudaDevice::open(CudaOptions::default(), OpRegistry::new()).unwrap();
    let mut chunk = 8 << 30;
    while chunk >= 2 << 20 {
        let fits = device.free_bytes() >= bytes + chunk;
        let taken = fits && device.reserve("taken", chunk).and_then(|at| device.back(at)).is_ok();
        if !taken {
            chunk /= 2;
        }
    }
    device
}

#[test]
fn cuda_what_finds_no_memory_says_so_and_is_there_once_it_does() {
    const TEST: &str = "exhaustion::cuda_what_finds_no_memory_says_so_and_is_there_once_it_does";
    if !Cuda::is_there() {
        return;
    }
    in_own_process(TEST, || {
        let taken = take_all_but(128 << 20);
        let left = taken.free_bytes();
        let error = large().build_module::<Cuda>(large().module()).unwrap_err();
        assert!(is_out_of_memory(&error), "{error}");
        let lost = left.abs_diff(taken.free_bytes());
        assert!(lost < 32 << 20, "{lost} bytes are not given back");
        drop(taken);
        drop(large().build::<Cuda>());

        for mode in [GraphMode::Piecewise, GraphMode::Full] {
            let setup = || recovery::setup::<Cuda>(mode, CaptureWhen::Lazy);
            let expected = recovery::serve(&mut setup().engine::<Cuda>());
            let mut engine = setup().engine::<Cuda>();
            let taken = take_all_but(0);
            assert_eq!(recovery::serve(&mut engine), expected, "{mode:?}, nothing left");
            let stats = engine.model().statistics();
            let (captures, failures) = (stats.captures, stats.capture_failures);
            drop(taken);
            engine.enable_graphs().unwrap();
            assert_eq!(recovery::serve(&mut engine), expected, "{mode:?}, memory is back");
            println!(
                "cuda {}: with nothing left, {captures} captures went well and {failures} failed; \
                 {} graphs once memory was back",
                mode.name(),
                engine.model().captured_graphs(),
            );

            let mut events = Vec::new();
            let id = engine.add(request(3)).unwrap();
            engine.step(&mut events).unwrap();
            engine.suspend(SuspendedWeights::Drop, &mut events).unwrap();
            let taken = take_all_but(0);
            assert!(engine.resume(Some(&SlotSetup::WEIGHTS)).is_err(), "{mode:?}");
            assert_eq!(engine.model().suspended(), Some(SuspendedWeights::Drop));
            drop(taken);
            engine.resume(Some(&SlotSetup::WEIGHTS)).unwrap();
            engine.run(&mut events).unwrap();
            assert_eq!(engine.ids(id), None, "it has ended");
            assert_eq!(recovery::serve(&mut engine), expected, "{mode:?}, resumed");
        }
    });
}

/// The process may have no more address space.
#[test]
fn cpu_what_finds_no_memory_says_so_and_is_there_once_it_does() {
    const TEST: &str = "exhaustion::cpu_what_finds_no_memory_says_so_and_is_there_once_it_does";
    in_own_process(TEST, || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
        let taken: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let before = getrlimit(Resource::As);
        let current = Some((taken << 10) + (192 << 20));
        setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
        let error = large().build_module::<Cpu>(large().module()).unwrap_err();
        assert!(is_out_of_memory(&error), "{error}");
        let expected = Setup::default().build::<Cpu>().captured_graphs();
        setrlimit(Resource::As, before).unwrap();
        assert_eq!(large().build::<Cpu>().captured_graphs(), expected);
    });
}
