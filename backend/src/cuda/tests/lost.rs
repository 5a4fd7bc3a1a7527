//! What fails at a submit, what is found later, and a device that is opened anew.

use super::fixture::{fixture, two_kernels};
use crate::artifact::PieceSize;
use crate::cuda::error::CallError;
use crate::cuda::testing::CallFault;
use crate::device::{Device, DeviceError};

#[test]
fn a_refused_replay_is_told_from_a_lost_device() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let graph = f.device.capture("p0 at 16", &[&program], &[16]).unwrap();
    f.driver.take_ran();
    f.faults.fail(CallFault::always("cuGraphLaunch", 2).once_after(0));
    let error = f.device.replay(&graph).unwrap_err();
    assert!(matches!(&error, DeviceError::Refused { label, .. } if label == "p0 at 16"), "{error}");
    assert!(f.driver.take_ran().is_empty(), "nothing of it ran");
    f.device.replay(&graph).unwrap();
    assert_eq!(f.driver.take_ran().len(), 2);

    // The status of work before it, or any status of a device that then does not wait either.
    for fault in [
        CallFault::always("cuGraphLaunch", 700).once_after(0),
        CallFault::always("cuGraphLaunch", 700).once_after(0).sticky(),
    ] {
        f.faults.fail(fault);
        let error = f.device.replay(&graph).unwrap_err();
        assert!(error.is_lost(), "{error}");
    }
    let error = f.launch(&program, 16).unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(f.device.capture("again", &[&program], &[16]).unwrap_err().is_lost());
}

#[test]
fn an_error_that_waiting_finds_loses_the_device() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    f.launch(&program, 16).unwrap();
    let end = f.device.record(None).unwrap();
    f.faults.fail(CallFault::always("cuEventSynchronize", 719).once_after(0).sticky());
    let error = f.device.wait(&end).unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(error.to_string().contains("second"), "{error}");
}

#[test]
fn a_device_that_was_opened_anew_works_and_holds_nothing_of_before() {
    let mut f = fixture();
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let graph = f.device.capture("p0 at 16", &[&program], &[16]).unwrap();
    let mut other = f.device.share(Default::default()).unwrap();
    let theirs = other.host_block(64).unwrap();
    let block = f.device.host_block(64).unwrap();
    f.faults.fail(CallFault::always("cuLaunchKernelEx", 719).once_after(0).sticky());
    assert!(f.launch(&program, 16).unwrap_err().is_lost());
    assert!(f.device.reserve("more", 1).unwrap_err().is_lost());

    // What was bound may be dropped before or after.
    drop(graph);
    f.device.reopen().unwrap();
    drop(program);
    let counts = f.driver.held();
    assert!(!counts.contains_key("exec") && !counts.contains_key("host block"), "{counts:?}");
    f.arena = f.device.reserve("the arena", 4096).unwrap();
    f.device.back(f.arena).unwrap();
    assert_eq!(f.device.host_block(8).unwrap().id, block.id, "blocks are numbered anew");
    let program = f.bind(&two_kernels(PieceSize::Exact(16)), "p0").unwrap();
    let graph = f.device.capture("p0 at 16", &[&program], &[16]).unwrap();
    f.driver.take_ran();
    f.device.replay(&graph).unwrap();
    f.launch(&program, 16).unwrap();
    assert_eq!(f.driver.take_ran().len(), 4);

    // The device that shared the context is lost too; it opens the context that there is now.
    // What it stages before it notices goes nowhere else.
    other.host_bytes_mut(theirs, theirs.all()).unwrap().fill(7);
    assert_eq!(other.host_bytes(theirs, theirs.all()).unwrap(), [7; 64]);
    let held = f.driver.held();
    assert!(other.reserve("more", 1).unwrap_err().is_lost());
    other.reopen().unwrap();
    let arena = other.reserve("more", 64).unwrap();
    other.back(arena).unwrap();
    f.device.replay(&graph).unwrap();
    drop((graph, program, other));
    let left = f.driver.held();
    assert!(left["context"] < held["context"] + 1, "{left:?}");
    drop(f.device);
    assert_eq!(f.driver.held(), std::collections::BTreeMap::new());
}

#[test]
fn a_device_that_can_not_be_opened_stays_lost_and_is_opened_later() {
    let mut f = fixture();
    f.faults.fail(CallFault::always("cuMemAddressReserve", 719).once_after(0).sticky());
    assert!(f.device.reserve("more", 1).unwrap_err().is_lost());
    f.faults.fail(CallFault::always("cuStreamCreate", 2).once_after(0));
    assert!(f.device.reopen().unwrap_err().is_lost());
    f.device.reopen().unwrap();
    f.device.reserve("more", 1).unwrap();
    drop(f.device);
    assert_eq!(f.driver.held(), std::collections::BTreeMap::new());
}

#[test]
fn statuses_of_failed_kernels_are_sticky_and_others_are_not() {
    let error = |code| CallError {
        call: "cuGraphLaunch",
        code,
        name: String::new(),
        description: String::new(),
    };
    for code in [700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999] {
        assert!(error(code).is_sticky(), "{code}");
    }
    for code in [1, 2, 3, 400, 701, 720, 801, 900, 901] {
        assert!(!error(code).is_sticky(), "{code}");
    }
}
