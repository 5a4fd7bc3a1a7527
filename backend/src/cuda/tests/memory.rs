//! Memory and host blocks of which a driver call fails half way, and what copies use.

use super::*;
use crate::weights::{TensorSource, TensorSpec, WeightError, WeightSource};

fn fails_once(call: &'static str) -> CallFault {
    CallFault::always(call, 1).once_after(0)
}

/// Each step of giving memory back, and of taking it, is told once it is done: what fails is as it was,
/// and goes on from there when it is tried again.
#[test]
fn a_range_whose_driver_call_failed_is_as_it_was_and_can_be_tried_again() {
    let mut f = fixture();
    let (base, arena) = (f.arena.base, f.arena);
    let mut byte = [0u8];
    f.device.write(base, &[7]).unwrap();
    f.faults.fail(fails_once("cuMemUnmap"));
    let error = f.device.drop_backing(arena).unwrap_err();
    assert!(error.to_string().contains("unmap the arena"), "{error}");
    f.device.back(arena).unwrap();
    f.device.read(base, &mut byte).unwrap();
    assert_eq!(byte, [7], "it never lost its memory");

    f.faults.fail(fails_once("cuMemRelease"));
    f.device.drop_backing(arena).unwrap_err();
    assert!(f.device.read(base, &mut byte).is_err(), "nothing is mapped");
    f.device.drop_backing(arena).unwrap();
    assert_eq!(f.driver.held().get("backing"), None, "it was given back at last");

    for call in ["cuMemMap", "cuMemSetAccess", "cuMemsetAsync"] {
        f.faults.fail(fails_once(call));
        f.device.back(arena).unwrap_err();
        assert!(f.device.read(base, &mut byte).is_err(), "{call}");
        f.device.back(arena).unwrap();
        f.device.read(base, &mut byte).unwrap();
        assert_eq!(byte, [0], "{call}");
        f.device.drop_backing(arena).unwrap();
        assert_eq!(f.driver.held().get("backing"), None, "{call}");
    }
    assert_eq!(f.faults.pending(), 0);
}

/// Nobody gets bytes of a host block that a copy may still use, before somebody waited for an event
/// after it, or for everything; what lies beside them is free all the while.
#[test]
fn what_a_copy_uses_is_given_to_nobody_before_it_is_done() {
    let mut f = fixture();
    let (device, base) = (&mut f.device, f.arena.base);
    let block = device.host_block(16).unwrap();
    let before = device.record(None).unwrap();
    device.copy_in(block, 4, 4, base).unwrap();
    device.copy_out(base, 2, block, 8).unwrap();
    let after = device.record(None).unwrap();
    let in_use = |device: &mut CudaDevice, range: std::ops::Range<u64>| {
        let found = device.host_bytes(block, range.clone()).map(|_| ());
        assert_eq!(device.host_bytes_mut(block, range).is_err(), found.is_err());
        matches!(found, Err(DeviceError::HostBlockInUse { block: 0, .. }))
    };
    for range in [0..16, 0..5, 7..8, 9..16] {
        assert!(in_use(device, range.clone()), "{range:?}");
    }
    for range in [0..4, 10..16, 6..6] {
        assert!(!in_use(device, range.clone()), "{range:?}");
    }
    device.wait(&before).unwrap();
    assert!(in_use(device, block.all()));
    // An event of another stream says nothing of this one, however many copies were before it.
    let mut other = device.share(Arc::default()).unwrap();
    let region = other.reserve("theirs", 64).unwrap();
    other.back(region).unwrap();
    let theirs = other.host_block(16).unwrap();
    (0..4).for_each(|_| other.copy_in(theirs, 0, 16, region.base).unwrap());
    let elsewhere = other.record(None).unwrap();
    device.wait(&elsewhere).unwrap();
    assert!(in_use(device, block.all()));
    device.wait(&after).unwrap();
    assert!(!in_use(device, block.all()));

    device.copy_in(block, 0, 1, base).unwrap();
    assert!(in_use(device, 0..1));
    device.read(base, &mut [0]).unwrap();
    assert!(!in_use(device, block.all()), "to read is to wait for everything");
    device.copy_in(block, 3, 0, base).unwrap();
    assert!(!in_use(device, block.all()), "of no bytes nothing is used");
}

/// Four bytes for every tensor.
#[derive(Debug)]
struct Ones;

impl WeightSource for Ones {
    fn tensor(&self, _: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        Ok(TensorSource::Bytes(vec![1; 4].into()))
    }
}

/// Weights go through two blocks in turn. Where a copy could not be marked, the next that goes through
/// its block waits for all work.
#[test]
fn an_upload_that_could_not_be_marked_is_waited_for() {
    let mut f = fixture();
    let ty = TensorType::new(DType::F32, [1u64]);
    let recipe = Recipe::Checkpoint { name: "w".to_owned(), ty };
    let base = f.arena.base;
    let mut upload = || f.device.materialize(&recipe, WeightLayout::RowMajor, &Ones, base);
    f.faults.fail(fails_once("cuEventRecord"));
    assert!(upload().unwrap_err().to_string().contains("upload 4 bytes of a weight"));
    f.faults.fail(fails_once("cuEventSynchronize"));
    upload().unwrap();
    upload().unwrap();
    upload().unwrap_err();
    (0..4).for_each(|_| upload().unwrap());
    assert_eq!(f.faults.pending(), 0);
}
