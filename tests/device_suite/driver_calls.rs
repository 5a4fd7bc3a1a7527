//! What a replayed step asks of the driver, the compiler and the host's allocator, counted from
//! outside of this program by a library that is loaded before it (`driver_calls.c`).

#![allow(unsafe_code, reason = "the counts are read from a C library by its symbols")]

use crate::sequences::roles_of;
use crate::skip::skipped;
use crate::small_decoder::Setup;
use crate::target::{Cpu, Cuda, SimulatedCuda, Target, in_own_process_with};
use libloading::os::unix::Library;
use piecewise_ir::dtype::DType;
use piecewise_runtime::engine::{BatchingEngine, Engine, EngineOptions, Request};
use piecewise_runtime::mode::GraphMode;
use piecewise_runtime::model::CompiledModel;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, c_char, c_long};
use std::path::PathBuf;
use std::process::Command;

const STEPS: u64 = 200;

/// What no replayed step calls: memory, code, captures, and waits for the stream or the device.
const NEVER: [&str; 16] = [
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemAddressReserve",
    "cuMemHostRegister_v2",
    "cuMemFree_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncLoad",
    "cuStreamBeginCapture_v2",
    "cuGraphInstantiateWithFlags",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "nvrtcCompileProgram",
];

/// What it does call.
const CALLED: [&str; 8] = [
    "cuEventSynchronize",
    "cuEventCreate",
    "cuEventRecord",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuLaunchKernelEx",
    "cuGraphLaunch",
];

/// The library, compiled; nothing where there is no C compiler.
fn interposer() -> Option<PathBuf> {
    let source = tempfile::Builder::new().suffix(".c").tempfile().unwrap();
    std::fs::write(source.path(), include_str!("driver_calls.c")).unwrap();
    let library = source.path().with_extension("so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source.path()).arg("-ldl");
    match compiler.status() {
        Ok(status) if status.success() => Some(library),
        other => {
            skipped("PIECEWISE_REQUIRE_GXX", format!("cc does not compile: {other:?}"));
            None
        }
    }
}

/// What was called so far, by name.
fn called() -> BTreeMap<&'static str, i64> {
    let this = Library::this();
    // SAFETY: the function is in the library that this process was started with, with this
    // signature; the name is a string that ends with NUL.
    unsafe {
        let calls = this.get::<unsafe extern "C" fn(*const c_char) -> c_long>(b"piecewise_calls\0");
        let calls = calls.unwrap();
        let count = |name: &&'static str| {
            let text = CString::new(*name).unwrap();
            (*name, calls(text.as_ptr()))
        };
        NEVER.iter().chain(&CALLED).map(count).collect()
    }
}

/// This thread's allocations so far.
fn allocations() -> i64 {
    // SAFETY: as for `called`; it takes nothing.
    unsafe {
        let symbol = b"piecewise_allocations\0";
        Library::this().get::<unsafe extern "C" fn() -> c_long>(symbol).unwrap()()
    }
}

/// Decodes in 200 steps of a mode that replays, and what they called.
fn of_steps<T: Target>(mode: GraphMode) -> (BTreeMap<&'static str, i64>, i64, usize) {
    let setup = Setup { mode, max_length: 512, ..Setup::default() };
    let model: CompiledModel<T::Device> = setup.build::<T>();
    let pieces = model.module().stitch().unwrap().steps.len();
    let roles = roles_of(&model);
    let options = EngineOptions::of(&model, &roles);
    let mut engine = BatchingEngine::new(model, roles, options).unwrap();
    for prompt in [&[1, 2, 3][..], &[4, 5]] {
        engine.add(Request::new(prompt.to_vec(), STEPS + 100)).unwrap();
    }
    let mut events = Vec::with_capacity(4 * STEPS as usize);
    for _ in 0..20 {
        engine.step(&mut events).unwrap();
    }
    let (before, allocated) = (called(), allocations());
    for _ in 0..STEPS {
        engine.step(&mut events).unwrap();
    }
    let allocated = allocations() - allocated;
    let after = called();
    assert_eq!(engine.statistics().misses(), 0);
    let of_steps = after.iter().map(|(name, n)| (*name, n - before[name])).collect();
    (of_steps, allocated, pieces)
}

fn in_child(test: &str, body: impl FnOnce()) {
    let is_child = std::env::var("LD_PRELOAD").is_ok_and(|preload| preload.ends_with(".so"));
    let library = if is_child { Some(PathBuf::new()) } else { interposer() };
    let Some(library) = library else { return };
    in_own_process_with(test, &[("LD_PRELOAD", library.as_os_str())], body);
    // Where there is none, nothing is left over.
    let _ = std::fs::remove_file(library);
}

#[test]
fn cuda_replays_ask_the_driver_for_one_wait_a_step_and_for_nothing_new() {
    if !Cuda::is_there() {
        return;
    }
    const TEST: &str =
        "driver_calls::cuda_replays_ask_the_driver_for_one_wait_a_step_and_for_nothing_new";
    in_child(TEST, || {
        for mode in [GraphMode::Piecewise, GraphMode::Full] {
            let (calls, allocations, members) = of_steps::<Cuda>(mode);
            let steps = STEPS as i64;
            println!("cuda {}: {calls:?}, {allocations} allocations of the host", mode.name());
            for name in NEVER {
                assert_eq!(calls[name], 0, "{name} in {}", mode.name());
            }
            assert_eq!(calls["cuEventSynchronize"], steps, "one read-back a step");
            assert_eq!(calls["cuEventCreate"], 0);
            assert_eq!(allocations, 0, "of the host, but for the driver's own");
            let graphs = calls["cuGraphLaunch"];
            match mode {
                GraphMode::Full => assert_eq!((graphs, calls["cuLaunchKernelEx"]), (steps, 0)),
                _ => assert!(graphs > steps && graphs < steps * members as i64, "{graphs}"),
            }
        }
    });
}

/// The same library over the CPU: what it counts on the stepping thread is what another allocator
/// counts in `tests/step_allocations.rs`.
#[test]
fn cpu_replays_allocate_nothing_seen_from_outside() {
    const TEST: &str = "driver_calls::cpu_replays_allocate_nothing_seen_from_outside";
    in_child(TEST, || {
        for mode in [GraphMode::Piecewise, GraphMode::Full] {
            let (calls, allocations, members) = of_steps::<Cpu>(mode);
            assert!(calls.values().all(|&n| n == 0), "{calls:?}");
            // Rayon makes a block for every 63 jobs.
            let jobs = if mode == GraphMode::Full { 1 } else { members as i64 };
            let most = (STEPS as i64 * jobs) / 63 + 2;
            assert!(allocations <= most, "{allocations} in {}, {most} are rayon's", mode.name());
        }
        let before = allocations();
        drop(std::hint::black_box(vec![1u8; 100]));
        assert!(allocations() > before, "the library counts");
    });
}

/// What the host does for a replay on CUDA, over a driver without a GPU.
#[test]
fn simulated_cuda_replays_allocate_nothing_of_the_host() {
    if !SimulatedCuda::is_there() {
        return;
    }
    const TEST: &str = "driver_calls::simulated_cuda_replays_allocate_nothing_of_the_host";
    in_child(TEST, || {
        for mode in [GraphMode::Piecewise, GraphMode::Full] {
            let (_, allocations, _) = of_steps::<SimulatedCuda>(mode);
            assert_eq!(allocations, 0, "in {}", mode.name());
        }
    });
}

/// What it takes to update a captured graph in place, beside making another executable one of the
/// capture, and the capture that both need.
#[test]
fn cuda_updating_graphs_in_place_is_timed_against_making_them() {
    if !Cuda::is_there() {
        return;
    }
    const TEST: &str = "driver_calls::cuda_updating_graphs_in_place_is_timed_against_making_them";
    let is_child = std::env::var("LD_PRELOAD").is_ok_and(|preload| preload.ends_with(".so"));
    let library = if is_child { Some(PathBuf::new()) } else { interposer() };
    let Some(library) = library else { return };
    let variables =
        [("LD_PRELOAD", library.as_os_str()), ("PIECEWISE_TIME_GRAPHS", OsStr::new("1"))];
    in_own_process_with(TEST, &variables, || {
        for layers in [2, 28] {
            for mode in [GraphMode::Piecewise, GraphMode::Full] {
                let before = graph_times();
                let setup = Setup { layers, mode, dtype: DType::BF16, ..Setup::default() };
                let model = setup.build::<Cuda>();
                let after = graph_times();
                let [graphs, made, updated, refused, captured] =
                    std::array::from_fn(|i| after[i] - before[i]);
                assert!(graphs >= model.captured_graphs() as f64, "{graphs}");
                println!(
                    "cuda {layers} layers, {}: {graphs} graphs, {:.1} us to capture one, {:.1} us to \
                     make it, {:.1} us to update it, {refused} refused",
                    mode.name(),
                    captured / graphs * 1e6,
                    made / graphs * 1e6,
                    updated / graphs * 1e6,
                );
            }
        }
    });
    let _ = std::fs::remove_file(library);
}

fn graph_times() -> [f64; 5] {
    let mut times = [0.0; 5];
    // SAFETY: as for `called`; it writes five numbers.
    unsafe {
        let symbol = b"piecewise_graph_times\0";
        Library::this().get::<unsafe extern "C" fn(*mut f64)>(symbol).unwrap()(times.as_mut_ptr());
    }
    times
}
