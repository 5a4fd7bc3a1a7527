//! States of one slot a sequence: given at admission, zeros before the first token, taken back.

use crate::slot_model::{SLOTS, SlotSetup, ids_of, request};
use crate::target::Target;
use crate::warnings::warned;
use piecewise_runtime::engine::{Engine, Request};
use piecewise_runtime::words::GraphMode;
use piecewise_runtime::words::SuspendedWeights;
use std::collections::BTreeMap;

fn engine<T: Target>(mode: GraphMode) -> Engine {
    SlotSetup::checked(mode).engine::<T>()
}

/// What each request gives in an engine that has run nothing before.
fn alone<T: Target>(request: &Request) -> Vec<u32> {
    let mut engine = engine::<T>(GraphMode::None);
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    ids_of(&events).remove(&id).unwrap()
}

pub(crate) fn a_slot_serves_one_sequence_after_the_other_from_zeros<T: Target>() {
    let requests: Vec<_> = (0..8).map(request).collect();
    let expected: Vec<_> = requests.iter().map(alone::<T>).collect();
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = engine::<T>(mode);
        let mut events = Vec::new();
        let mut numbers = BTreeMap::new();
        for (number, request) in requests.iter().enumerate() {
            numbers.insert(engine.add(request.clone()).unwrap(), number);
            engine.step(&mut events).unwrap();
        }
        // What it had in flight is dropped, and its slot goes to another at once.
        let removed = *numbers.keys().next_back().unwrap();
        let running = engine.slots().free_slots();
        engine.remove(removed).unwrap();
        assert!(engine.slots().free_slots() >= running);
        engine.run(&mut events).unwrap();
        for (id, ids) in ids_of(&events) {
            let expected = &expected[numbers[&id]];
            let whole = if id == removed { expected.get(..ids.len()) } else { Some(&expected[..]) };
            assert_eq!(Some(&ids[..]), whole, "{}", mode.name());
        }
        assert_eq!(engine.slots().free_slots() as u64, SLOTS);
    }
}

/// A pool of four pages is too small for three sequences, which lose their pages and slots and begin again.
pub(crate) fn a_preempted_sequence_begins_again_from_zeros<T: Target>() {
    let long = |number| Request::new(request(number).prompt, 30);
    let requests: Vec<_> = (0..8).map(long).collect();
    for mode in [GraphMode::Piecewise, GraphMode::Full] {
        let engine = |kv_rows| SlotSetup { kv_rows, ..SlotSetup::checked(mode) }.engine::<T>();
        let run = |engine: &mut Engine, requests: &[Request]| {
            let mut events = Vec::new();
            requests.iter().for_each(|request| _ = engine.add(request.clone()).unwrap());
            engine.run(&mut events).unwrap();
            Vec::from_iter(ids_of(&events).into_values())
        };
        let mut small = engine(64);
        let found = run(&mut small, &requests);
        assert!(small.load().preemptions > 0, "{}", mode.name());
        let alone = requests
            .iter()
            .flat_map(|request| run(&mut engine(256), std::slice::from_ref(request)));
        assert_eq!(found, Vec::from_iter(alone), "{}", mode.name());
    }
}

/// States lie where they lay, or are computed again where weights were dropped with them.
pub(crate) fn a_suspended_sequence_goes_on<T: Target>() {
    let expected = [2, 3].map(|number| alone::<T>(&request(number)));
    for weights in [SuspendedWeights::Keep, SuspendedWeights::Drop] {
        let mut engine = engine::<T>(GraphMode::Full);
        let mut events = Vec::new();
        let ids = [2, 3].map(|number| engine.add(request(number)).unwrap());
        for _ in 0..5 {
            engine.step(&mut events).unwrap();
        }
        engine.suspend(weights, &mut events).unwrap();
        engine.resume(Some(&SlotSetup::WEIGHTS)).unwrap();
        engine.run(&mut events).unwrap();
        let found = ids_of(&events);
        assert_eq!(ids.map(|id| found[&id].clone()), expected, "{weights:?}");
    }
}

pub(crate) fn a_removed_requests_slot_is_free_within_the_step<T: Target>() {
    let mut engine = engine::<T>(GraphMode::Full);
    let ids: Vec<_> = (1..5).map(|number| engine.add(request(number)).unwrap()).collect();
    let mut events = Vec::new();
    for _ in 0..8 {
        engine.step(&mut events).unwrap();
    }
    assert_eq!(engine.slots().free_slots(), 0, "the fourth waits");
    engine.remove(ids[0]).unwrap();
    assert_eq!(engine.slots().free_slots(), 1);
    events.clear();
    engine.run(&mut events).unwrap();
    let found = ids_of(&events);
    assert!(!found.contains_key(&ids[0]));
    assert_eq!(found[&ids[3]], alone::<T>(&request(4)));
}

/// Whether it had finished and was kept, or was running.
pub(crate) fn a_request_used_after_its_removal_is_named_and_the_others_go_on<T: Target>() {
    let expected = alone::<T>(&request(3));
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = engine::<T>(mode);
        let mut events = Vec::new();
        let kept = engine.add(Request { keep: true, ..request(2) }).unwrap();
        engine.run(&mut events).unwrap();
        let [running, other] = [1, 3].map(|number| engine.add(request(number)).unwrap());
        for _ in 0..2 {
            engine.step(&mut events).unwrap();
        }
        for (removed, free) in [(kept, 1), (running, 2)] {
            engine.remove(removed).unwrap();
            assert_eq!(engine.slots().free_slots(), free);
            for error in [
                engine.extend(removed, Request::new([5, 6], 6)).unwrap_err(),
                engine.remove(removed).unwrap_err(),
            ] {
                assert_eq!(error.request(), Some(removed));
                assert!(error.to_string().contains(&format!("request {removed}")), "{error}");
            }
            assert!(engine.ids(removed).is_none() && engine.usage(removed).is_none());
            assert_eq!(engine.slots().free_slots(), free);
        }
        engine.run(&mut events).unwrap();
        assert_eq!(ids_of(&events)[&other], expected, "{}", mode.name());
        assert_eq!(engine.slots().free_slots() as u64, SLOTS);
    }
}

pub(crate) fn a_kept_conversation_goes_on_from_its_slot_or_is_computed_again<T: Target>() {
    let mut more = Request::new([5, 6], 6);
    let first = Request { keep: true, ..request(2) };
    let reply = alone::<T>(&first);
    let whole = [&first.prompt[..], &reply, &more.prompt].concat();
    let expected = alone::<T>(&Request::new(whole.clone(), 6));
    for others in [0, 5] {
        let mut engine = engine::<T>(GraphMode::Piecewise);
        let id = engine.add(first.clone()).unwrap();
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        assert_eq!(engine.kept(), [id]);
        assert_eq!(engine.slots().free_slots() as u64, SLOTS - 1);
        for number in 0..others {
            engine.add(request(number)).unwrap();
        }
        engine.run(&mut events).unwrap();
        events.clear();
        more.keep = true;
        engine.extend(id, more.clone()).unwrap();
        engine.run(&mut events).unwrap();
        assert_eq!(ids_of(&events)[&id], expected, "after {others} others");
        let usage = engine.usage(id).unwrap();
        assert_eq!((usage.prompt, usage.generated), (whole.len() as u64, 6));
        // The last id of the first turn was sampled and not computed.
        let kept = (first.prompt.len() + reply.len()) as u64 - 1;
        assert_eq!(usage.cached, if others == 0 { kept } else { 0 });
        engine.remove(id).unwrap();
        assert_eq!(engine.slots().free_slots() as u64, SLOTS);
    }
}

/// A state is of the whole text before a token: no page stands for it.
pub(crate) fn there_is_no_prefix_cache_and_that_is_said_at_start<T: Target>() {
    let (mut engine, said) = warned(|| engine::<T>(GraphMode::Full));
    assert!(said.contains("no prefix cache"), "{said}");
    assert!(!engine.options().prefix_cache);
    let long = Request::new(vec![3; 20], 4);
    let mut found = Vec::new();
    for _ in 0..2 {
        let id = engine.add(Request { keep: true, ..long.clone() }).unwrap();
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        assert_eq!(engine.usage(id).unwrap().cached, 0);
        found.push(ids_of(&events).remove(&id).unwrap());
    }
    assert_eq!(found[0], found[1]);
}
