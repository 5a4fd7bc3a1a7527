//! An engine that is put to sleep and woken, with requests and without.

use super::*;
use crate::words::SuspendedWeights;

/// A way to be told, and where it is heard.
fn told() -> (SleepAnswer, Receiver<Result<(), SleepError>>) {
    let (answer, heard) = mpsc::channel();
    (Box::new(move |result| drop(answer.send(result))), heard)
}

fn sleep(handle: &EngineHandle, mode: PauseMode) -> Receiver<Result<(), SleepError>> {
    let (answer, heard) = told();
    handle.sleep(SuspendedWeights::Drop, mode, answer);
    heard
}

fn wake(handle: &EngineHandle) {
    let (answer, heard) = told();
    handle.wake_up(answer);
    heard.recv().unwrap().unwrap();
}

fn is_suspended(handle: &EngineHandle) -> bool {
    handle.call(|engine| engine.model().suspended().is_some()).recv().unwrap()
}

fn assert_refused(handle: &EngineHandle) {
    let refused = handle.submit(request(9), Box::new(|_| {})).err();
    assert_eq!(refused, Some(SubmitError::Asleep));
}

#[test]
fn who_asks_a_sleeping_engine_is_refused_and_who_asked_before_goes_on() {
    let thread = start(&Setup::default(), 64);
    let handle = thread.handle();
    let (_first, of_first, release) = submit_and_hold(handle, request(1));
    let second = submit(handle, request(2));
    let asleep = sleep(handle, PauseMode::Keep);
    assert_refused(handle);
    drop(release);
    asleep.recv().unwrap().unwrap();
    assert_eq!((handle.rest(), is_suspended(handle)), (Rest::Asleep, true));
    assert_refused(handle);
    assert_eq!(handle.live_requests(), 2);
    wake(handle);
    assert_eq!((handle.rest(), is_suspended(handle)), (Rest::Awake, false));
    assert_eq!(outcome(&of_first).0, expected(1)[1..]);
    assert_answered(2, &second.1);
    let (_third, updates) = submit(handle, request(3));
    assert_answered(3, &updates);
}

#[test]
fn an_engine_that_waits_falls_asleep_after_its_last_answer_unless_it_is_woken() {
    let thread = start(&Setup::default(), 64);
    let handle = thread.handle();
    for is_woken in [true, false] {
        let (_ticket, updates, release) = submit_and_hold(handle, request(1));
        let asleep = sleep(handle, PauseMode::Wait);
        assert_refused(handle);
        assert_eq!(handle.rest(), Rest::FallingAsleep);
        if is_woken {
            let (answer, heard) = told();
            handle.wake_up(answer);
            drop(release);
            heard.recv().unwrap().unwrap();
            assert!(matches!(asleep.recv().unwrap(), Err(SleepError::Woken)));
        } else {
            drop(release);
            asleep.recv().unwrap().unwrap();
            assert!(handle.live_requests() == 0 && is_suspended(handle));
        }
        assert_eq!(outcome(&updates).0, expected(1)[1..], "whole");
    }
    wake(handle);
    let (_ticket, updates) = submit(handle, request(2));
    assert_answered(2, &updates);
}

#[test]
fn what_an_engine_is_not_to_keep_ends_when_it_falls_asleep() {
    let thread = start(&Setup::default(), 64);
    let handle = thread.handle();
    let (_ticket, updates, release) = submit_and_hold(handle, request(1));
    let asleep = sleep(handle, PauseMode::Abort);
    drop(release);
    asleep.recv().unwrap().unwrap();
    let (_, end) = outcome(&updates);
    assert!(matches!(end, Some(Update::Failed(Failure::Asleep))), "{end:?}");
    assert_eq!(handle.live_requests(), 0);
    wake(handle);
    let engine = thread.finish().unwrap();
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
}

/// Nobody else could wake it then, and SIGTERM would wait for ever.
#[test]
fn a_sleeping_engine_that_drains_answers_those_that_it_keeps() {
    let thread = start(&Setup::default(), 64);
    let handle = thread.handle().clone();
    let (_ticket, updates, release) = submit_and_hold(&handle, request(1));
    let asleep = sleep(&handle, PauseMode::Keep);
    drop(release);
    asleep.recv().unwrap().unwrap();
    assert!(thread.finish().is_some());
    assert_eq!(outcome(&updates).0, expected(1)[1..]);
    let late = sleep(&handle, PauseMode::Keep);
    assert!(matches!(late.recv().unwrap(), Err(SleepError::Stopped)), "nobody is left to sleep");
}
