//! Memory that really runs out: a model that finds no room, one that finds none when it is resumed, and
//! captures where nothing is left. Others on the device would notice, so each has a process and a time
//! of its own.

use crate::recovery;
use crate::sequences::{Left, Sequences, Turn, roles_of, step};
use crate::slot_model::{SlotSetup, ids_of, request};
use crate::small_decoder::{Setup, WEIGHTS};
use crate::target::{Cpu, Cuda, Target, in_own_process};
use piecewise_backend::cuda::{CudaDevice, CudaOptions};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::engine::{Engine, EngineOptions, Request};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{
    CaptureWhen, FallbackReason, GraphMode, ModelError, OnCaptureFailure, StepMode,
    SuspendedWeights,
};
use piecewise_testing::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::{Duration, Instant};

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

/// A model of so many layers that a graph of a whole step takes 10 MiB and more of a GPU, and the driver
/// soon asks for more than what it holds already.
fn deep() -> Setup {
    Setup {
        layers: 192,
        mode: GraphMode::Full,
        query_lengths: vec![1, 2],
        capture: CaptureWhen::Lazy,
        on_capture_failure: OnCaptureFailure::Launch,
        ..Setup::default()
    }
}

/// What steps of every size leave, each of which wants a graph of its own.
fn steps_of_every_size(model: &mut CompiledModel) -> Vec<Left> {
    let uniform = [1, 2].into_iter().flat_map(|length| (1..=4).map(move |n| vec![length; n]));
    let mixed = [3, 5, 8, 16, 17, 48].into_iter().map(|tokens| vec![tokens - 1, 1]);
    let (mut sequences, mut rng) = (Sequences::of(model), Rng::new(9));
    let mut of_lengths = |lengths: Vec<u64>| {
        let turn = |(sequence, tokens)| {
            sequences.restart(sequence);
            Turn { sequence, tokens, rows: ChunkRows::Last, feedback: false }
        };
        let turns: Vec<_> = lengths.into_iter().enumerate().map(turn).collect();
        step(model, &sequences.fill(&turns, &mut rng))
    };
    uniform.chain(mixed).map(&mut of_lengths).collect()
}

/// A capture that finds no memory is a step that is launched, and is made once there is some.
#[test]
fn cuda_captures_that_find_no_memory_are_launched_and_made_later() {
    const TEST: &str = "exhaustion::cuda_captures_that_find_no_memory_are_launched_and_made_later";
    if !Cuda::is_there() {
        return;
    }
    in_own_process(TEST, || {
        // Twice, since the states keep what the steps before left.
        let mut launched = deep().build::<Cuda>();
        launched.set_launches_only(true);
        let expected = [(); 2].map(|()| steps_of_every_size(&mut launched));
        drop(launched);
        let hold = |found: &[Left], expected: &[Left]| {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found.difference(expected), None);
            }
        };
        let mut model = deep().build::<Cuda>();
        let taken = take_all_but(0);
        let found = steps_of_every_size(&mut model);
        hold(&found, &expected[0]);
        let stats = model.statistics().clone();
        println!(
            "cuda: with nothing left, {} captures of whole steps went well, {} failed and {} replays \
             were refused",
            stats.captures, stats.capture_failures, stats.refused_replays,
        );
        assert!(stats.capture_failures > 0, "there was memory for every graph");
        let is_launched = |left: &&Left| left.report.mode == StepMode::None;
        let launched = found.iter().filter(is_launched).count() as u64;
        assert_eq!(launched, stats.capture_failures + stats.refused_replays);
        assert_eq!(stats.misses[FallbackReason::NotCaptured.name()], stats.capture_failures);
        drop(taken);
        let found = steps_of_every_size(&mut model);
        hold(&found, &expected[1]);
        assert!(found.iter().all(|left| left.report.mode == StepMode::Full));
        assert_eq!(model.captured_graphs(), found.len());
        let after = model.statistics();
        assert_eq!(after.capture_failures, stats.capture_failures);
        assert_eq!(after.refused_replays, stats.refused_replays);
    });
}

/// What the machine has is taken by others, too: what is found then is found some time.
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(600), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An engine whose KV pool is nearly all that the machine has free, of which it touches little.
#[test]
fn cpu_an_engine_that_finds_no_memory_stays_suspended_until_there_is_some() {
    const TEST: &str =
        "exhaustion::cpu_an_engine_that_finds_no_memory_stays_suspended_until_there_is_some";
    /// Of the pool: a key and a value of each of two layers.
    const BYTES_OF_ROW: u64 = 2 * 2 * 2 * 64 * 4;
    const LEFT: u64 = 256 << 20;
    in_own_process(TEST, || {
        let device = Cpu::make(&OpRegistry::builtin().into(), 1).0;
        let engine = |kv_rows| {
            let setup = Setup { head_dim: 64, kv_rows, ..Setup::default() };
            let model = setup.build_module::<Cpu>(setup.module()).ok()?;
            let roles = roles_of(&model);
            let options = EngineOptions::of(&model, &roles);
            Some(Engine::new(model, roles, options).unwrap())
        };
        let request = |number: u32| {
            Request::new((0..9 + number).map(|i| (i * i + number) % 61).collect::<Vec<_>>(), 12)
        };
        let ended = |engine: &mut Engine, mut events| {
            for number in 1..4 {
                engine.add(request(number)).unwrap();
            }
            engine.run(&mut events).unwrap();
            ids_of(&events).into_values().collect::<Vec<_>>()
        };
        let begun = |engine: &mut Engine| {
            let mut events = Vec::new();
            engine.add(request(0)).unwrap();
            (0..3).for_each(|_| assert!(engine.step(&mut events).unwrap()));
            events
        };
        let mut small = engine(None).unwrap();
        let events = begun(&mut small);
        let expected = ended(&mut small, events);
        for weights in [SuspendedWeights::Keep, SuspendedWeights::Drop] {
            let mut engine = until("no engine fits", || {
                let rows = device.free_bytes().checked_sub(LEFT)? / BYTES_OF_ROW;
                engine(Some(rows.min(1 << 30) / 16 * 16))
            });
            let mut events = begun(&mut engine);
            engine.suspend(weights, &mut events).unwrap();
            let mut taken = Vec::new();
            let error = until("every resume went well", || match engine.resume(Some(&WEIGHTS)) {
                Ok(()) => {
                    taken.push(vec![1u8; LEFT as usize]);
                    engine.suspend(weights, &mut events).unwrap();
                    None
                }
                Err(error) => Some(error),
            });
            assert!(error.to_string().contains("bytes are free"), "{error}");
            assert_eq!(engine.model().suspended(), Some(weights));
            let error = engine.step(&mut events).unwrap_err().to_string();
            assert!(error.contains("suspended") && engine.has_work(), "{error}");
            drop(taken);
            until("no resume went well", || engine.resume(Some(&WEIGHTS)).ok());
            assert_eq!(ended(&mut engine, events), expected, "{weights:?}");
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
