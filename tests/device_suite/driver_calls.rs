//! What a step, replayed or launched, asks of the driver, the compiler and the host's allocator,
//! counted from outside of this program by a library that is loaded before it (`driver_calls.c`).

#![allow(unsafe_code, reason = "the counts are read from a C library by its symbols")]

use crate::bounded::Bound as _;
use crate::sequences::{Sequences, Turn, roles_of};
use crate::skip::skipped;
use crate::small_decoder::Setup;
use crate::target::{Cpu, Cuda, SimulatedCuda, Target, in_own_process_with};
use libloading::os::unix::Library;
use piecewise_ir::dtype::DType;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::engine::{Engine, EngineOptions, Request};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{GraphMode, StepMode};
use piecewise_testing::Rng;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, c_char, c_long};
use std::path::PathBuf;
use std::process::Command;

const STEPS: u64 = 200;

/// What no step calls: memory, code, captures, and waits for the stream or the device, as a copy
/// that is not of a stream is one.
const NEVER: [&str; 37] = [
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamBeginCapture_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemcpy",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpy2D_v2",
    "cuEventDestroy_v2",
    "nvrtcCompileProgram",
];

/// What it does call, or may.
const CALLED: [&str; 12] = [
    "cuMemsetD8Async",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuMemcpyDtoDAsync_v2",
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
    match compiler.bounded().map(|mut compiler| compiler.wait()) {
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
            let count = calls(text.as_ptr());
            assert!(count >= 0, "{name} is not counted");
            (*name, count)
        };
        NEVER.iter().chain(&CALLED).map(count).collect()
    }
}

/// A number that the library has counted; `symbol` ends with NUL, without which it would be copied.
fn counted(symbol: &[u8]) -> i64 {
    // SAFETY: as for `called`; it takes nothing.
    unsafe { Library::this().get::<unsafe extern "C" fn() -> c_long>(symbol).unwrap()() }
}

/// The allocations of this thread so far, those of all threads, and those that are set apart.
fn allocations() -> [i64; 3] {
    [
        &b"piecewise_allocations\0"[..],
        b"piecewise_allocations_of_all\0",
        b"piecewise_allocations_apart\0",
    ]
    .map(counted)
}

/// Bytes of the block that Rayon's queue makes for every 63 jobs that another thread hands it: the next
/// block, and a job and its state for each.
const BLOCK_OF_JOBS: i64 = 8 + 63 * (2 * 8 + 8);

/// Counts allocations of so many bytes apart.
fn set_apart(bytes: i64) {
    // SAFETY: as for `called`; it takes a number.
    unsafe {
        let symbol = b"piecewise_set_apart\0";
        Library::this().get::<unsafe extern "C" fn(c_long)>(symbol).unwrap()(bytes);
    }
}

/// What a run of steps called and allocated.
struct Counted {
    calls: BTreeMap<&'static str, i64>,
    /// By the stepping thread, by all threads, and those set apart.
    allocations: [i64; 3],
    members: i64,
}

impl Counted {
    /// Counts 200 calls of `step` but for what each does before the closure that it hands on.
    fn of(members: usize, mut step: impl FnMut(&mut dyn FnMut(&mut dyn FnMut()))) -> Self {
        let mut allocated = [0; 3];
        let before = called();
        for _ in 0..STEPS {
            step(&mut |counted| {
                let before = allocations();
                counted();
                let after = allocations();
                allocated = [0, 1, 2].map(|i| allocated[i] + after[i] - before[i]);
            });
        }
        let after = called();
        let calls = after.iter().map(|(name, n)| (*name, n - before[name])).collect();
        Self { calls, allocations: allocated, members: members as i64 }
    }
}

/// Decodes in steps of an engine, and what they called: those of a mode that replays all replay.
fn of_engine<T: Target>(mode: GraphMode) -> Counted {
    let setup = Setup { mode, max_length: 512, ..Setup::default() };
    let model: CompiledModel = setup.build::<T>();
    let members = model.module().stitch().unwrap().steps.len();
    let roles = roles_of(&model);
    let options = EngineOptions::of(&model, &roles);
    let mut engine = Engine::new(model, roles, options).unwrap();
    for prompt in [&[1, 2, 3][..], &[4, 5]] {
        engine.add(Request::new(prompt.to_vec(), STEPS + 100)).unwrap();
    }
    let mut events = Vec::with_capacity(4 * STEPS as usize);
    for _ in 0..20 {
        engine.step(&mut events).unwrap();
    }
    let misses = engine.model().statistics().misses();
    let counted = Counted::of(members, |count| {
        count(&mut || {
            engine.step(&mut events).unwrap();
        });
    });
    let missed = if mode.decode() == StepMode::None { STEPS } else { 0 };
    assert_eq!(engine.model().statistics().misses(), misses + missed);
    counted
}

/// Steps that bring so many tokens of each sequence.
const SHAPES: [[u64; 3]; 3] = [[1, 1, 1], [2, 2, 2], [9, 1, 4]];

/// How they run.
fn mode_of(mode: GraphMode, shape: [u64; 3]) -> StepMode {
    if shape[0] < 3 { mode.decode() } else { mode.mixed() }
}

/// Steps of one shape, from the entry of each submit to the return of its read.
fn of_submits<T: Target>(mode: GraphMode, shape: [u64; 3]) -> Counted {
    let setup = Setup { mode, max_rows: 8, query_lengths: vec![1, 2], ..Setup::default() };
    let mut model: CompiledModel = setup.build::<T>();
    let members = model.module().stitch().unwrap().steps.len();
    let mut sequences = Sequences::of(&model);
    let mut rng = Rng::new(1);
    let turns: Vec<_> = (0..)
        .zip(shape)
        .map(|(sequence, tokens)| Turn { sequence, tokens, rows: ChunkRows::Last, feedback: false })
        .collect();
    let mut step = |count: &mut dyn FnMut(&mut dyn FnMut())| {
        (0..turns.len()).for_each(|sequence| sequences.restart(sequence));
        let view = sequences.fill(&turns, &mut rng);
        let data = view.data();
        count(&mut || {
            let ticket = model.submit(&data).unwrap();
            assert!(!model.read(&ticket).unwrap().bytes(1).unwrap().is_empty());
        });
        assert_eq!(model.last_step().unwrap().mode, mode_of(mode, shape));
    };
    // The first steps make what is reused from then on.
    for _ in 0..4 {
        step(&mut |counted| counted());
    }
    Counted::of(members, step)
}

/// What a mode's steps are counted in, with how they run: those that replay, or all where none do.
fn of_all<T: Target>(mode: GraphMode) -> Vec<(StepMode, Counted)> {
    let of_shapes = SHAPES
        .into_iter()
        .filter(|shape| mode == GraphMode::None || mode_of(mode, *shape) != StepMode::None);
    let of_shapes = of_shapes.map(|shape| (mode_of(mode, shape), of_submits::<T>(mode, shape)));
    [(mode.decode(), of_engine::<T>(mode))].into_iter().chain(of_shapes).collect()
}

const MODES: [GraphMode; 5] = [
    GraphMode::None,
    GraphMode::Piecewise,
    GraphMode::Full,
    GraphMode::FullDecodeOnly,
    GraphMode::FullAndPiecewise,
];

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
        for (mode, step, found) in MODES.into_iter().flat_map(|mode| {
            of_all::<Cuda>(mode).into_iter().map(move |(step, found)| (mode, step, found))
        }) {
            let Counted { calls, allocations, members } = found;
            let steps = STEPS as i64;
            println!(
                "cuda {} {step:?}: {calls:?}, {allocations:?} allocations of the host",
                mode.name()
            );
            for name in NEVER {
                assert_eq!(calls[name], 0, "{name} in {}", mode.name());
            }
            assert_eq!(calls["cuEventSynchronize"], steps, "one read-back a step");
            assert_eq!(calls["cuEventCreate"], 0);
            assert_eq!(allocations[0], 0, "of the host, but for the driver's own");
            assert_eq!(allocations[2], 0, "none is set apart");
            let graphs = calls["cuGraphLaunch"];
            match step {
                StepMode::Full => assert_eq!((graphs, calls["cuLaunchKernelEx"]), (steps, 0)),
                StepMode::None => {
                    assert_eq!(graphs, 0);
                    assert!(calls["cuLaunchKernelEx"] > steps);
                }
                StepMode::Piecewise => {
                    assert!(graphs > steps && graphs < steps * members, "{graphs}")
                }
            }
        }
        let handed_out = counted(b"piecewise_looked_up\0");
        println!("cuda: libraries of the driver's own were handed {handed_out} of the functions");
        assert!(handed_out > 0, "what cuBLASLt calls is not counted");
    });
}

/// The same library over the CPU, where it counts all threads: on the stepping thread it is what another
/// allocator counts in `tests/step_allocations.rs`.
#[test]
fn cpu_replays_allocate_nothing_seen_from_outside() {
    const TEST: &str = "driver_calls::cpu_replays_allocate_nothing_seen_from_outside";
    in_child(TEST, || {
        set_apart(BLOCK_OF_JOBS);
        for mode in MODES {
            for (step, found) in of_all::<Cpu>(mode) {
                let Counted { calls, allocations, members } = found;
                assert!(calls.values().all(|&n| n == 0), "{calls:?}");
                let jobs = if step == StepMode::Full { 1 } else { members };
                let [own, of_all, blocks] = allocations;
                let what = format!("in {}, {step:?}", mode.name());
                assert_eq!((own, of_all), (0, 0), "of this thread and of all {what}");
                assert!(blocks <= STEPS as i64 * jobs / 63 + 2, "{blocks} blocks of jobs {what}");
            }
        }
        let [own, all, apart] = allocations();
        drop(std::hint::black_box(vec![1u8; 100]));
        std::thread::spawn(|| drop(std::hint::black_box(vec![1u8; 100]))).join().unwrap();
        drop(std::hint::black_box(vec![1u8; BLOCK_OF_JOBS as usize]));
        let [after, after_all, after_apart] = allocations();
        assert!(after > own && after_all - all > after - own, "the library counts");
        assert_eq!(after_apart - apart, 1, "it sets apart");
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
        for mode in MODES {
            for (step, found) in of_all::<SimulatedCuda>(mode) {
                assert_eq!(found.allocations, [0; 3], "in {}, {step:?}", mode.name());
                for name in NEVER {
                    assert_eq!(found.calls[name], 0, "{name}: nothing of a driver is called");
                }
            }
        }
    });
}

/// What it takes to update a captured graph in place, beside making another executable one of the
/// capture, and the capture that both need; and to set the parameters of its kernels without one.
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
                let [graphs, made, updated, refused, captured, set, kernels, unset] =
                    std::array::from_fn(|i| after[i] - before[i]);
                assert!(graphs >= model.captured_graphs() as f64, "{graphs}");
                assert!(refused < graphs && updated > 0.0, "{refused} of {graphs} not updated");
                assert!(unset < kernels && set > 0.0, "{unset} of {kernels} kernels not set");
                println!(
                    "cuda {layers} layers, {}: {graphs} graphs, {:.1} us to capture one, {:.1} us to \
                     make it, {:.1} us to update it, {refused} refused; {:.1} us to set the parameters of \
                     its {:.1} kernels, {unset} refused",
                    mode.name(),
                    captured / graphs * 1e6,
                    made / graphs * 1e6,
                    updated / graphs * 1e6,
                    set / graphs * 1e6,
                    kernels / graphs,
                );
            }
        }
    });
    let _ = std::fs::remove_file(library);
}

fn graph_times() -> [f64; 8] {
    let mut times = [0.0; 8];
    // SAFETY: as for `called`; it writes eight numbers.
    unsafe {
        let symbol = b"piecewise_graph_times\0";
        Library::this().get::<unsafe extern "C" fn(*mut f64)>(symbol).unwrap()(times.as_mut_ptr());
    }
    times
}
