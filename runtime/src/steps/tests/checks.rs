//! What the checks of steps find.

use super::*;
use crate::words::{ModelError, StepData};

#[test]
fn check_addresses_names_a_buffer_swapped_after_the_capture() {
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let mut model = Setup { mode, ..Setup::default() }.build().unwrap();
        submit(&mut model, &[1, 2, 3]).unwrap();
        let ids = model.module().graph().inputs()[0].value;
        let elsewhere = model.memory().layout().bytes - 64;
        model.memory_mut().move_slot(ids, elsewhere);
        let error = submit(&mut model, &[1, 2, 3]).unwrap_err();
        let ModelError::StaleAddress { launch, operand, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((launch.as_str(), operand.as_str()), ("test.embed", "0"));
    }
    let setup = Setup { mode: GraphMode::Full, ..Setup::default() };
    setup.faults.wrong_address.store(true, Ordering::Relaxed);
    let error = submit(&mut setup.build().unwrap(), &[1, 2, 3]).unwrap_err().to_string();
    assert!(error.contains("test.mix") && error.contains(" 2 at "), "{error}");
}

/// Two slots that change places: each address is one that some operand has, and neither is right.
#[test]
fn check_addresses_names_two_slots_that_changed_places() {
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let mut model = Setup { mode, ..Setup::default() }.build().unwrap();
        submit(&mut model, &[1, 2, 3]).unwrap();
        let graph = model.module().graph();
        let input = |role: &str| {
            let found = graph.inputs().iter().find(|input| input.role.as_deref() == Some(role));
            found.unwrap().value
        };
        // Split ops are launched from where they were bound: in pieces, one that a piece reads.
        let first = match mode {
            GraphMode::Piecewise => graph.inputs()[0].value,
            _ => input("kv.lengths"),
        };
        let pair = [first, input("kv.slots")];
        let at = pair.map(|value| model.memory().slot_offset(value).unwrap());
        assert_ne!(at[0], at[1]);
        model.memory_mut().move_slot(pair[0], at[1]);
        model.memory_mut().move_slot(pair[1], at[0]);
        let error = submit(&mut model, &[1, 2, 3]).unwrap_err();
        assert!(matches!(&error, ModelError::StaleAddress { .. }), "{mode:?}: {error}");
        assert!(error.to_string().contains("another value"), "{mode:?}: {error}");
    }
}

#[test]
fn check_compare_names_the_first_value_that_a_replay_writes_otherwise() {
    for (mode, who) in [(GraphMode::Piecewise, "written by p2"), (GraphMode::Full, "output 0")] {
        let mut setup = Setup { mode, ..Setup::default() };
        setup.checks.compare = true;
        let mut model = setup.build().unwrap();
        let ticket = submit(&mut model, &[1, 2, 3]).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&[1, 2, 3]));
        setup.faults.wrong_replay.store(true, Ordering::Relaxed);
        let error = submit(&mut model, &[1, 2, 3]).unwrap_err();
        let ModelError::ReplayDiffers { value, row: 0, .. } = &error else {
            panic!("{error}");
        };
        assert!(value.contains(who), "{error}");
    }
}

/// Reading what a step has not written yet, or filling what it has not copied yet, is found by the
/// device that runs late.
#[test]
fn a_missing_wait_is_found() {
    let setup = Setup::default();
    let mut model = setup.build().unwrap();
    let ticket = submit(&mut model, &[1, 2, 3]).unwrap();
    setup.faults.missing_wait.store(true, Ordering::Relaxed);
    let read = std::panic::AssertUnwindSafe(|| model.read(&ticket).map(drop));
    let panic = std::panic::catch_unwind(read).unwrap_err();
    let text = panic.downcast_ref::<&str>().unwrap();
    assert_eq!(*text, "a host block is read before its copies are done");
}

/// Where inputs of a step are of another step, the check says which.
#[test]
fn check_addresses_names_inputs_that_disagree_about_pages() {
    let model = &mut Setup::default().build().unwrap();
    let roles = Setup::roles_of(model);
    let mut table = PageTable::default();
    table.grow(&mut PagePool::new(roles.kv_rows), 3).unwrap();
    let mut batch = BatchBuffers::new(roles);
    batch.push(&chunk(&[1, 2, 3], &table, ChunkRows::Last));
    let view = batch.view().unwrap();
    let data = view.data();
    model.submit(&data).unwrap();
    let stale = |model: &mut Model, role: &str, number: i32| {
        let inputs = model.module().graph().inputs();
        let at = inputs.iter().position(|input| input.role.as_deref() == Some(role)).unwrap();
        let mut changed: Vec<Vec<u8>> = data.inputs.iter().map(|bytes| bytes.to_vec()).collect();
        changed[at][..4].copy_from_slice(&number.to_le_bytes());
        let inputs: Vec<&[u8]> = changed.iter().map(Vec::as_slice).collect();
        let error = model.submit(&StepData { inputs: &inputs, ..data }).unwrap_err();
        assert!(matches!(error, ModelError::Pages(_)), "{error}");
        error.to_string()
    };
    let names = [("kv.block_table", 2), ("kv.lengths", 9), ("kv.slots", 7)];
    let found = names.map(|(role, number)| stale(model, role, number));
    assert!(found[0].contains("page 2"), "{}", found[0]);
    assert!(found[1].contains("9 keys"), "{}", found[1]);
    assert!(found[2].contains("writes row 7"), "{}", found[2]);
}
