//! The device over a simulated driver: addresses, launches, captures and planned faults.

mod dot_dir;
mod fixture;
mod followed;
mod library;
mod lost;
mod memory;
mod prepared;
#[path = "../../../tests/support/skip.rs"]
pub(super) mod skip;

use super::driver::GraphNode;
use super::testing::{CallFault, Faults, FaultyDriver, Noted, SimulatedDriver};
use super::*;
use crate::artifact::{Artifact, PieceSize};
use crate::compiler::CompilerOptions;
use crate::device::measure::{LaunchCounts, MeasuredDevice, StepPart};
use crate::device::{Address, BoundTo, ByteRows, CaptureRule, Device, DeviceError, Program};
use crate::store::MemoryStore;
use crate::weights::{NormalWeights, WeightLayout};
use fixture::{Fixture, artifact, fixture, host, kernel, mapped, two_kernels};
use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::Param;
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use std::sync::Arc;

#[test]
fn memory_is_zeroed_and_comes_back_at_the_same_addresses() {
    let mut f = fixture();
    let (device, base) = (&mut f.device, f.arena.base);
    let mut bytes = [1u8; 8];
    device.read(base, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    device.write(base.offset(16), &[1, 2, 3, 4]).unwrap();
    device.fill(base.offset(20), 8, &[5, 6]).unwrap();
    device.read(base.offset(16), &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 5, 6]);

    let block = device.host_block(8).unwrap();
    device.host_bytes_mut(block, block.all()).unwrap().copy_from_slice(&[9; 8]);
    device.copy_in(block, 0, 8, base).unwrap();
    device.copy_out(base.offset(4), 4, block, 4).unwrap();
    let event = device.record(None).unwrap();
    device.wait(&event).unwrap();
    assert_eq!(device.host_bytes(block, block.all()).unwrap(), [9; 8]);
    assert!(device.copy_out(base, 5, block, 4).is_err());
    assert!(device.copy_in(block, 4, 5, base).is_err());
    let held = device.host_bytes_mut(block, block.all()).unwrap();
    held.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let rows = ByteRows { width: 2, pitch: 3, count: 2 };
    device.copy_in_rows(block, 1, rows, base).unwrap();
    device.read(base, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3, 9, 4, 5, 9, 9, 9]);
    assert!(device.copy_in_rows(block, 5, rows, base).is_err(), "the block ends before the rows");
    // An event that is given back marks again, and no other is made.
    let held = f.driver.held()["event"];
    let event = device.record(Some(event)).unwrap();
    device.wait(&event).unwrap();
    assert_eq!(f.driver.held()["event"], held);
    drop(event);

    device.drop_backing(f.arena).unwrap();
    let error = device.write(base, &[1]).unwrap_err();
    assert!(matches!(error, DeviceError::BadAddress { .. }), "{error}");
    device.back(f.arena).unwrap();
    device.read(base.offset(16), &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    let past = Address(base.0 + (2 << 20));
    assert!(device.read(past, &mut bytes).is_err());
    assert!(device.fill(base, 6, &[1, 2, 3]).is_err());
    assert!(device.fill(base, 6, &[1, 2, 3, 4]).is_err());
}

#[test]
fn launches_take_addresses_counts_sizes_and_numbers() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    f.launch(&program, 9).unwrap();
    let base = f.arena.base.0;
    let parameters = vec![base, base + 1024, base + 3840, 9, 9 << 32, u64::from(1f32.to_bits()), 7];
    let noted = |name: &str, programmatic| Noted {
        name: name.to_owned(),
        grid: [2, 3, 1],
        programmatic,
        parameters: parameters.clone(),
        maps: Vec::new(),
    };
    assert_eq!(f.driver.take_ran(), [noted("first", false), noted("second", true)]);
    let error = f.launch(&program, 17).unwrap_err();
    assert!(error.to_string().contains("over its bound 16"), "{error}");
}

/// Maps among the parameters, too.
#[test]
fn what_is_submitted_by_the_drivers_calls_alone_is_what_a_launch_submits() {
    let images = [("first", kernel("first", true)), ("mapped", mapped())];
    let mut f = fixture();
    let program = f.bind(&artifact(&images, PieceSize::Exact(16)), "p0").unwrap();
    f.launch(&program, 9).unwrap();
    let launched = f.driver.take_ran();
    assert_eq!(launched[1].maps.len(), 1);
    f.device.bare_submit(&[StepPart::Launch(&program)], &[9]).unwrap();
    assert_eq!(f.driver.take_ran(), launched);
}

#[test]
fn a_captured_graph_replays_what_was_captured_and_holds_its_memory() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let graph = f.device.capture("T=16", &[&program, &program], &[16]).unwrap();
    assert_eq!(f.driver.take_ran(), []);
    f.device.replay(&graph).unwrap();
    let ran = f.driver.take_ran();
    let names: Vec<_> = ran.iter().map(|noted| noted.name.as_str()).collect();
    assert_eq!(names, ["first", "second", "first", "second"]);
    let summary = graph.of::<CudaCaptured>().unwrap().summary();
    assert_eq!((summary.edges, summary.programmatic_edges), (3, 2));
    let addresses = graph.addresses();
    assert_eq!(addresses.len(), 4 * 3);
    let first = &addresses[0];
    assert_eq!((first.program, first.launch, first.what), (0, "first", BoundTo::Counts));
    assert_eq!((first.name, first.address), ("counts", f.arena.base.offset(3840)));

    f.device.drop_backing(f.arena).unwrap();
    let error = f.device.replay(&graph).unwrap_err();
    assert!(error.to_string().contains("the memory of the arena is not backed"), "{error}");
    f.device.back(f.arena).unwrap();
    f.device.replay(&graph).unwrap();

    // The graph outlives the device and its programs, and everything is returned at the end.
    let Fixture { driver, device, .. } = f;
    drop(program);
    drop(device);
    assert!(driver.held().contains_key("range") && driver.held().contains_key("module"));
    drop(graph);
    assert_eq!(driver.held(), std::collections::BTreeMap::new());
}

#[test]
fn launches_are_counted_outside_graphs_and_nodes_inside() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let graph = f.device.capture("T=16", &[&program, &program], &[16]).unwrap();
    assert_eq!(f.device.launch_counts(), LaunchCounts::default());
    f.launch(&program, 9).unwrap();
    for _ in 0..3 {
        f.device.replay(&graph).unwrap();
    }
    let counts = f.device.launch_counts();
    assert_eq!((counts.plain_launches, counts.graph_launches), (2, 3));
    assert_eq!((counts.graph_nodes, counts.programmatic_edges), (12, 6));
    let shape = graph.shape();
    assert_eq!((shape.launches, shape.nodes, shape.programmatic_edges), (4, 4, 2));

    let (start, end) = (f.device.mark(None).unwrap(), f.device.mark(None).unwrap());
    let time = f.device.elapsed(&start, &end).unwrap();
    assert_eq!(time, std::time::Duration::from_millis(1));
    let error = f.device.read_bandwidth().unwrap_err();
    assert!(error.to_string().contains("NVRTC was not found"), "{error}");
}

#[test]
fn graphs_with_nodes_that_do_not_replay_are_refused() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let mut rule = |nodes: &[GraphNode], programs: &[&Program]| {
        f.driver.also_capture(nodes);
        match f.device.capture("T=16", programs, &[16]) {
            Err(DeviceError::Capture { rule, .. }) => rule,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rule(&[GraphNode::Allocation], &[&program]), CaptureRule::NoAllocation);
    assert_eq!(rule(&[GraphNode::Host], &[&program]), CaptureRule::NoHostNode);
    assert_eq!(rule(&[GraphNode::MemorySet], &[]), CaptureRule::NoEmpty);
    assert_eq!(rule(&[], &[]), CaptureRule::NoEmpty);
    assert!(!f.driver.held().contains_key("graph"));
}

#[test]
fn a_graph_that_lost_a_programmatic_edge_is_refused() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    f.driver.lose_programmatic_edges();
    let error = f.device.capture("T=16", &[&program, &program], &[16]).unwrap_err();
    assert!(error.to_string().contains("kept 0 of at least 2 programmatic edges"), "{error}");
    assert!(!f.driver.held().contains_key("exec"));
    // A graph that has none to lose is as good as ever.
    let plain = artifact(&[("first", kernel("first", false))], PieceSize::Exact(16));
    let program = f.bind(&plain, "p0").unwrap();
    f.device.capture("T=16", &[&program, &program], &[16]).unwrap();
}

/// What a library's kernels have among themselves is no edge between ours.
#[test]
fn a_lost_programmatic_edge_is_not_made_up_for_by_a_librarys() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let library =
        |name: &str| GraphNode::Kernel { name: name.to_owned(), grid: [1; 3], block: [32, 1, 1] };
    f.driver.also_capture(&["split", "product", "sum"].map(library));
    let graph = f.device.capture("T=16", &[&program, &program], &[16]).unwrap();
    assert_eq!(graph.shape().programmatic_edges, 4);
    drop(graph);
    f.driver.lose_programmatic_edges();
    let error = f.device.capture("T=16", &[&program, &program], &[16]).unwrap_err();
    let said = "kept 0 of at least 2 programmatic edges from kernel `first` to kernel `second`";
    assert!(error.to_string().contains(said), "{error}");
    assert!(!f.driver.held().contains_key("exec"));
}

#[test]
fn blocks_note_their_times_where_their_kernels_were_compiled_to() {
    let mut f = fixture();
    let CudaImage::Kernel(mut noting) = kernel("second", true) else { unreachable!() };
    noting.recipe.params.push(Param::Stamps);
    let images = [("first", kernel("first", false)), ("second", CudaImage::Kernel(noting))];
    let program = f.bind(&artifact(&images, PieceSize::Exact(16)), "p0").unwrap();
    let kernels: Vec<_> = program.launches().iter().map(|l| l.kernel).collect();
    assert_eq!(kernels, ["first", "second"]);
    f.launch(&program, 16).unwrap();
    assert_eq!(f.driver.take_ran()[1].parameters.last(), Some(&0), "no graph, no place");

    let graph = f.device.capture("T=16", &[&program, &program], &[16]).unwrap();
    f.device.replay(&graph).unwrap();
    let ran = f.driver.take_ran();
    let place = |i: usize| *ran[i].parameters.last().unwrap();
    assert_eq!(place(3), place(1) + 6 * 32, "a grid of 2 x 3 blocks has as many places");
    let times = f.device.block_times(&graph).unwrap().unwrap();
    let blocks: Vec<_> = times.launches.iter().map(Vec::len).collect();
    assert_eq!((times.multiprocessors, blocks), (4, vec![0; 4]), "nothing has noted anything");
    drop(graph);
    assert!(!f.driver.held().contains_key("block"));

    let rest = program.without(&[1]);
    let graph = f.device.capture("T=16", &[&rest], &[16]).unwrap();
    assert_eq!(graph.of::<CudaCaptured>().unwrap().summary().kernels, ["first"]);
    assert_eq!(f.device.block_times(&graph).unwrap(), None);
}

#[test]
fn a_capture_ends_whatever_happens_inside_it() {
    let mut f = fixture();
    let images = [("first", kernel("first", false)), ("host", host())];
    let program = f.bind(&artifact(&images, PieceSize::General(64)), "p0").unwrap();
    let error = f.device.capture("T=5", &[&program], &[5]).unwrap_err();
    insta::assert_snapshot!(error);
    assert!(!f.driver.is_inside_capture());

    let capture = || f.device.capture("T=3", &[&program], &[3]).map(drop);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(capture));
    assert!(caught.is_err());
    assert!(!f.driver.is_inside_capture());
    assert!(!f.driver.held().contains_key("graph"));

    // The device is as before.
    let program = f.bind(&artifact(&images, PieceSize::General(64)), "p0").unwrap();
    let graph = f.device.capture("T=4", &[&program], &[4]).unwrap();
    f.device.replay(&graph).unwrap();
    assert_eq!(f.driver.take_ran().len(), 1);
}

#[test]
fn ops_that_can_not_be_captured_are_refused_before_the_capture() {
    let mut f = fixture();
    let mut never = two_kernels(PieceSize::Exact(16));
    never.alternatives[0].parts[0].ways[0].launches[1].capture = CaptureSupport::Never;
    let program = f.bind(&never, "p0").unwrap();
    assert_eq!(program.capture_support(), CaptureSupport::Never);
    let error = f.device.capture("T=16", &[&program], &[16]).unwrap_err();
    insta::assert_snapshot!(error);
}

#[test]
fn programs_of_one_image_keep_the_shared_memory_of_each() {
    let mut f = fixture();
    let size = PieceSize::Exact(16);
    let mut with_shared = |bytes| {
        let CudaImage::Kernel(mut kernel) = kernel("first", false) else { unreachable!() };
        kernel.recipe.dynamic_shared = bytes;
        f.bind(&artifact(&[("first", CudaImage::Kernel(kernel))], size), "p0").unwrap()
    };
    let programs = [with_shared(4096), with_shared(90_000), with_shared(1024), with_shared(0)];
    let context = StepContext { counts: &[9], sizes: &[16], inputs: &[] };
    for program in &programs {
        f.device.launch(program, LaunchContext::Step(&context)).unwrap();
    }
    assert_eq!(f.driver.take_ran().len(), 4);
}

#[test]
fn programs_that_do_not_fit_are_refused() {
    let mut f = fixture();
    let size = PieceSize::Exact(16);
    let mut errors = Vec::new();
    let mut refuse = |artifact: Artifact| {
        errors.push(f.bind(&artifact, "p0 of layer 3").unwrap_err().to_string());
    };
    refuse(Artifact { piece: [8; 32], ..two_kernels(size) });
    refuse(Artifact { images: Vec::new(), ..two_kernels(size) });
    refuse(artifact(&[("lost", kernel("missing", false))], size));
    let CudaImage::Kernel(other) = kernel("first", false) else { unreachable!() };
    let other = KernelImage { arch: Arch { number: 80 }, ..other };
    refuse(artifact(&[("first", CudaImage::Kernel(other))], size));
    let CudaImage::Kernel(mut large) = kernel("first", false) else { unreachable!() };
    large.recipe.dynamic_shared = 300_000;
    refuse(artifact(&[("first", CudaImage::Kernel(large))], size));
    let mut few = two_kernels(size);
    few.alternatives[0].parts[0].ways[0].launches[0].args.truncate(1);
    refuse(few);
    let mut scratch = two_kernels(size);
    scratch.alternatives[0].parts[0].ways[0].scratch = 1;
    refuse(scratch);
    let CudaImage::Host(unknown) = host() else { unreachable!() };
    let unknown = HostImage { name: "test.unknown".to_owned(), ..unknown };
    refuse(artifact(&[("op", CudaImage::Host(unknown))], size));
    f.bounds = vec![1 << 40];
    let huge = f.bind(&two_kernels(PieceSize::General(1 << 40)), "p0 of layer 3");
    errors.push(huge.unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn running_out_of_memory_says_what_asked_and_leaves_nothing_behind() {
    let mut f = fixture();
    let states = f.device.reserve("the states", 2 << 30).unwrap();
    let error = f.device.back(states).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { .. }));
    insta::assert_snapshot!(error);
    assert_eq!(f.driver.held()["backing"], 1);

    // A mapping that fails returns the memory that it had.
    let small = f.device.reserve("the weights", 1 << 20).unwrap();
    f.faults.fail(CallFault::always("cuMemSetAccess", 2).once_after(0));
    assert!(matches!(f.device.back(small), Err(DeviceError::OutOfMemory { .. })));
    assert_eq!(f.driver.held()["backing"], 1);
    f.device.back(small).unwrap();

    f.faults.fail(CallFault::always("cuMemHostRegister_v2", 2));
    assert!(matches!(f.device.host_block(64), Err(DeviceError::OutOfMemory { .. })));
    assert!(f.device.reserve("too much", u64::MAX).is_err());
}

#[test]
fn planned_faults_fail_at_their_piece_and_size_only() {
    let mut f = fixture();
    let p0 = f.bind(&two_kernels(PieceSize::General(64)), "p0").unwrap();
    let p1 = f.bind(&two_kernels(PieceSize::General(64)), "p1").unwrap();
    f.faults.fail(CallFault::always("cuLaunchKernelEx", 719).at("p1 / second").sized(&[16]));
    f.device.capture("T=8", &[&p0, &p1], &[8]).unwrap();
    f.device.capture("T=16", &[&p0], &[16]).unwrap();
    insta::assert_snapshot!(f.device.capture("T=16", &[&p0, &p1], &[16]).unwrap_err());
    assert!(!f.driver.is_inside_capture());
    insta::assert_snapshot!(f.launch(&p1, 16).unwrap_err());
    f.launch(&p1, 15).unwrap();

    for call in ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
        f.faults.clear();
        f.faults.fail(CallFault::always(call, 900).at("T=16"));
        let error = f.device.capture("T=16", &[&p0], &[16]).unwrap_err();
        let DeviceError::CaptureFailed { sizes, reason, .. } = &error else { panic!("{error}") };
        assert_eq!((sizes.as_slice(), reason.contains(call)), ([16].as_slice(), true), "{error}");
        assert!(!f.driver.is_inside_capture());
    }
    f.faults.clear();
    let graph = f.device.capture("T=16", &[&p0], &[16]).unwrap();
    f.faults.fail(CallFault::always("cuGraphLaunch", 700));
    insta::assert_snapshot!(f.device.replay(&graph).unwrap_err());

    // What fails later names the last launch.
    f.faults.clear();
    f.launch(&p1, 2).unwrap();
    f.faults.fail(CallFault::always("cuStreamSynchronize", 700));
    insta::assert_snapshot!(f.device.read(f.arena.base, &mut [0]).unwrap_err());
}

#[test]
fn a_gpu_that_is_too_old_is_refused() {
    let faults = Faults::default();
    faults.set_capability((7, 5));
    let inner = Arc::new(SimulatedDriver::new());
    let driver = Arc::new(FaultyDriver { inner: inner.clone(), faults });
    let open = |ordinal| {
        let options = CudaOptions { ordinal, ..CudaOptions::default() };
        let nvrtc = LazyNvrtc::missing();
        CudaDevice::over(driver.clone(), nvrtc, options, OpRegistry::new()).unwrap_err()
    };
    insta::assert_snapshot!(open(0));
    assert!(matches!(open(2), CudaError::NoDevice { ordinal: 2, count: 2, .. }));
    assert_eq!(inner.held(), std::collections::BTreeMap::new());
}

#[test]
fn what_is_missing_is_named() {
    // Without a driver that is said first, and no machine has so many devices.
    let options = CudaOptions { ordinal: 300, ..CudaOptions::default() };
    let text = CudaDevice::open(options, OpRegistry::new()).unwrap_err().to_string();
    let expected = [CudaLibrary::Driver.to_string(), "300".to_owned()];
    assert!(expected.iter().any(|name| text.contains(name)), "{text}");
}

/// Kernels are noted, not run: what is checked is the order, the addresses and that intermediate
/// memory is returned. On a GPU the values are checked too.
#[test]
fn weights_are_made_by_uploads_and_kernels() {
    let dirs = library_dirs(&[]);
    let nvrtc = match Nvrtc::open(&dirs, None) {
        Ok(nvrtc) => nvrtc,
        Err(error) => return skip::skipped("PIECEWISE_REQUIRE_NVRTC", error),
    };
    let driver = Arc::new(SimulatedDriver::new());
    let options = CudaOptions::default();
    let store = Arc::new(MemoryStore::new());
    let mut device =
        CudaDevice::over(driver.clone(), nvrtc.into(), options, OpRegistry::new()).unwrap();
    device.compiler(Arc::default(), CompilerOptions::default()).prepare_device(&*store).unwrap();
    let weights = device.reserve("weights", 1 << 20).unwrap();
    device.back(weights).unwrap();
    let leaf = |name: &str| Recipe::Checkpoint {
        name: name.to_owned(),
        ty: TensorType::new(DType::F32, [8u64, 16]),
    };
    let parts = vec![leaf("a"), leaf("b")];
    let recipe = Recipe::Cast {
        to: DType::BF16,
        of: Box::new(Recipe::Transpose {
            perm: vec![1, 0],
            of: Box::new(Recipe::Concat { axis: 0, parts }),
        }),
    };
    let source = NormalWeights { std: 0.02, seed: 1 };
    device.materialize(&recipe, WeightLayout::RowMajor, &source, weights.base).unwrap();
    let ran = driver.take_ran();
    let names: Vec<_> = ran.iter().map(|noted| noted.name.as_str()).collect();
    assert_eq!(names, ["normal", "copy_4", "normal", "copy_4", "cast"]);
    assert_eq!(ran[4].parameters[1..], [weights.base.0, 256, 0, 2]);
    assert!(!driver.held().contains_key("block"));

    // What the store has needs no NVRTC.
    let warm = |store: Option<Arc<MemoryStore>>| {
        let (missing, options) = (LazyNvrtc::missing(), CudaOptions::default());
        let registry = OpRegistry::new();
        let mut warm = CudaDevice::over(driver.clone(), missing, options, registry).unwrap();
        if let Some(store) = store {
            warm.compiler(Arc::default(), CompilerOptions::default())
                .prepare_device(&*store)
                .unwrap();
        }
        let again = warm.reserve("weights", 1 << 20).unwrap();
        warm.back(again).unwrap();
        warm.materialize(&recipe, WeightLayout::RowMajor, &source, again.base)
    };
    assert!(warm(None).unwrap_err().to_string().contains("NVRTC was not found"));
    warm(Some(store.clone())).unwrap();
    let kept = store.entries();
    assert_eq!(kept.keys().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["cubin"]);
    assert!(kept.values().all(|entry| entry.factors.iter().any(|(name, _)| name == "made by")));

    let outside = Address(weights.base.0 + (2 << 20) - 8);
    let refused = device.materialize(&recipe, WeightLayout::RowMajor, &source, outside);
    assert!(matches!(refused, Err(DeviceError::BadAddress { .. })));
}

/// Between two models on one device bytes are copied where they lie: no copy to or from the host.
#[test]
fn what_another_model_computed_is_copied_past_the_host() {
    let (mut f, mut other) = (fixture(), fixture());
    // The other device is on the same hardware.
    other.device = f.beside();
    let arena = other.device.reserve("another arena", 64).unwrap();
    other.device.back(arena).unwrap();
    other.device.write(arena.base, &[1, 2, 3, 4]).unwrap();
    for call in ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpy2DAsync_v2"] {
        f.faults.fail(CallFault::always(call, 1));
    }
    let to = f.arena.base.offset(8);
    f.device.copy_from(&mut other.device, arena.base.offset(1), 3, to).unwrap();
    assert_eq!(f.faults.pending(), 3);
    assert!(f.device.write(to, &[0]).is_err(), "the faults strike");
    f.faults.clear();
    let mut bytes = [0; 4];
    f.device.read(to, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3, 4, 0]);
}
