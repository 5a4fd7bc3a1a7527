//! Launches of a captured graph that follow the sizes of each replay.

use super::fixture::{Fixture, artifact, fixture, host, kernel, mapped, two_kernels};
use super::*;
use crate::device::Captured;
use piecewise_kernels::op::cuda::GridAxis;

/// Two kernels at 16 rows, a row of kernels that follow, one with a map, and the two again.
fn captured(f: &mut Fixture) -> (Program, Program, Captured) {
    let piece = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let images = [("op", kernel("op", true)), ("mapped", mapped()), ("last", kernel("last", true))];
    let op = f.bind(&artifact(&images, PieceSize::Exact(16)), "op").unwrap();
    let programs = [&piece, &op, &piece];
    let graph = f.device.capture_following("p0 to p2", &programs, &[1], &[16]).unwrap();
    (piece, op, graph)
}

/// What a replay runs is what its parts launch: pieces with the sizes of the capture, ops with those of
/// the step. A launch is set where it differs from what it was set to last, and no other.
#[test]
fn each_replay_runs_its_ops_with_the_sizes_of_its_own_step() {
    let mut f = fixture();
    let (piece, op, graph) = captured(&mut f);
    assert_eq!(graph.shape().programmatic_edges, 4, "second, op, last and second again");
    f.driver.take_ran();
    // 7 and 8 rows have one grid, and other numbers among the parameters.
    for (rows, sets) in [(16, 0), (9, 3), (9, 0), (1, 3), (16, 3), (7, 3), (8, 3), (8, 0)] {
        for (program, rows) in [(&piece, 16), (&op, rows), (&piece, 16)] {
            f.launch(program, rows).unwrap();
        }
        let launched = f.driver.take_ran();
        f.device.replay_at(&graph, &[rows]).unwrap();
        assert_eq!(f.driver.take_ran(), launched, "at {rows} rows");
        let set = f.driver.take_set();
        assert_eq!(set.len(), sets, "at {rows} rows");
        assert!(set.iter().all(|set| launched[2..5].contains(set)), "{set:?}");
    }
    f.device.replay(&graph).unwrap();
    assert_eq!(f.driver.take_ran()[2].grid, [2, 3, 1], "as it was captured");
    let counts = f.device.launch_counts();
    assert_eq!((counts.graph_launches, counts.graph_nodes), (9, 9 * 7));
    assert_eq!(counts.programmatic_edges, 9 * 4, "no edge was lost by setting");
}

/// A kernel whose parameters do not depend on what changed is left as it is.
#[test]
fn what_a_size_does_not_change_is_not_set() {
    let mut f = fixture();
    let CudaImage::Kernel(mut fixed) = kernel("fixed", true) else { unreachable!() };
    fixed.recipe.grid[0] = GridAxis::Persistent { per_multiprocessor: 1 };
    fixed.recipe.params.truncate(3);
    let images = [("fixed", CudaImage::Kernel(fixed)), ("follows", kernel("follows", true))];
    let op = f.bind(&artifact(&images, PieceSize::Exact(16)), "op").unwrap();
    let graph = f.device.capture_following("op", &[&op], &[0], &[16]).unwrap();
    f.device.replay_at(&graph, &[3]).unwrap();
    let set = f.driver.take_set();
    assert_eq!(set.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["follows"]);
}

#[test]
fn what_is_no_kernel_with_work_at_every_size_can_not_follow() {
    let mut f = fixture();
    let CudaImage::Kernel(mut idle) = kernel("idle", false) else { unreachable!() };
    idle.recipe.grid[2] = GridAxis::of(0u64, 1);
    for (image, said) in
        [(host(), "no kernel of ours alone"), (CudaImage::Kernel(idle), "no work at some sizes")]
    {
        let images = [("first", kernel("first", false)), ("other", image)];
        let program = f.bind(&artifact(&images, PieceSize::Exact(16)), "op").unwrap();
        let error = f.device.capture_following("op", &[&program], &[0], &[16]).unwrap_err();
        let DeviceError::CaptureFailed { launch, reason, .. } = &error else { panic!("{error}") };
        assert_eq!(launch.as_deref(), Some("other"));
        assert!(reason.contains(said), "{error}");
        assert!(!f.driver.is_inside_capture() && !f.driver.held().contains_key("graph"));
        // It is as good as any where it need not follow.
        f.device.capture("op", &[&program], &[16]).unwrap();
    }
}

/// A replay that could not be set is refused as a whole, and the next one sets all that it needs, even
/// what the failed one has set.
#[test]
fn a_launch_that_can_not_be_set_refuses_the_replay() {
    let mut f = fixture();
    let (_, _, graph) = captured(&mut f);
    f.driver.take_ran();
    let fault = CallFault::always("cuGraphExecKernelNodeSetParams_v2", 1).once_after(1);
    f.faults.fail(fault);
    let error = f.device.replay_at(&graph, &[9]).unwrap_err();
    assert!(matches!(&error, DeviceError::Refused { label, .. } if label == "p0 to p2"), "{error}");
    assert!(error.to_string().contains("[9]"), "{error}");
    assert!(f.driver.take_ran().is_empty(), "nothing of it ran");
    f.driver.take_set();
    f.device.replay_at(&graph, &[16]).unwrap();
    assert_eq!(f.driver.take_set().len(), 3, "nobody knows what was set");
    assert_eq!(f.driver.take_ran()[2].grid, [2, 3, 1]);

    let error = f.device.replay_at(&graph, &[17]).unwrap_err();
    assert!(matches!(&error, DeviceError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("over its bound 16"), "{error}");
    let lost = CallFault::always("cuGraphExecKernelNodeSetParams_v2", 700).once_after(0);
    f.faults.fail(lost);
    assert!(f.device.replay_at(&graph, &[5]).unwrap_err().is_lost());
}

#[test]
fn a_node_that_the_driver_does_not_name_is_a_failed_capture() {
    let mut f = fixture();
    f.faults.fail(CallFault::always("cuStreamGetCaptureInfo_v3", 500).once_after(0));
    let op = f.bind(&two_kernels(PieceSize::Exact(16)), "op").unwrap();
    let error = f.device.capture_following("op", &[&op], &[0], &[16]).unwrap_err();
    assert!(error.to_string().contains("cuStreamGetCaptureInfo_v3"), "{error}");
    assert!(!f.driver.is_inside_capture() && !f.driver.held().contains_key("graph"));
}

/// The graph that nodes are named by is held as long as the executable one, and no longer.
#[test]
fn what_follows_outlives_the_device_and_is_returned() {
    let mut f = fixture();
    let (piece, op, graph) = captured(&mut f);
    assert_eq!(f.driver.held()["graph"], 1);
    f.device.drop_backing(f.arena).unwrap();
    let error = f.device.replay_at(&graph, &[9]).unwrap_err();
    assert!(error.to_string().contains("the memory of the arena is not backed"), "{error}");
    let Fixture { driver, device, .. } = f;
    drop((piece, op, device));
    drop(graph);
    assert_eq!(driver.held(), std::collections::BTreeMap::new());
}

/// Kernels that note their times have places for the blocks of the capture: what may have more notes none.
#[test]
fn what_follows_notes_no_times() {
    let mut f = fixture();
    let noting = |name: &str| {
        let CudaImage::Kernel(mut image) = kernel(name, true) else { unreachable!() };
        image.recipe.params.push(Param::Stamps);
        artifact(&[(name, CudaImage::Kernel(image))], PieceSize::Exact(16))
    };
    let [piece, op] = ["piece", "op"].map(|name| f.bind(&noting(name), name).unwrap());
    let graph = f.device.capture_following("both", &[&piece, &op], &[1], &[16]).unwrap();
    f.driver.take_ran();
    f.device.replay_at(&graph, &[9]).unwrap();
    let places = f.driver.take_ran().into_iter().map(|ran| *ran.parameters.last().unwrap());
    let places: Vec<u64> = places.collect();
    assert!(places[0] > 0 && places[1] == 0, "{places:?}");
}
