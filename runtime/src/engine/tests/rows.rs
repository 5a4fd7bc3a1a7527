//! Rows in the place of tokens: how they come there, and when the device they are on is lost.

use super::*;
use crate::words::{FinishReason, SuspendedWeights};
use piecewise_backend::device::Address;

/// A prompt whose three ids from position 1 on are given as rows, and what they stand for.
fn with_rows(engine: &mut Engine, keep: bool) -> (Request, Vec<u32>) {
    let rows = engine.add_rows(RowSource::Values(&[11.0, 12.0, 13.0])).unwrap();
    let rows = vec![GivenRows { position: 1, rows }];
    let request = Request { rows, keep, ..Request::new(vec![5; 6], 6) };
    (request, vec![5, 11, 12, 13, 5, 5])
}

#[test]
fn rows_that_a_lost_device_took_end_their_requests_and_no_others() {
    let bounds = Bounds { embeddings: 8, ..Bounds::default() };
    for steps in 0..5 {
        let setup = Setup { bounds, ..Setup::default() };
        let mut engine = engine(&setup, true);
        let mut events = Vec::new();
        let (request, stands_for) = with_rows(&mut engine, true);
        let kept = engine.add(request.clone()).unwrap();
        engine.run(&mut events).unwrap();
        let expected = assert_answer(&engine, &events, kept, &stands_for, &request);
        let (request, _) = with_rows(&mut engine, false);
        let brings = engine.add(request).unwrap();
        let plain = Request::new([1, 2, 3], 6);
        let other = engine.add(plain.clone()).unwrap();
        assert_eq!(engine.free_rows(), 2);
        events.clear();
        for _ in 0..steps {
            engine.step(&mut events).unwrap();
        }
        setup.faults.losing_wait.store(1, Ordering::Relaxed);
        engine.run(&mut events).unwrap();
        assert_eq!(engine.model().statistics().recoveries, 1);
        let (before, reason) = collect(&events, brings);
        assert_eq!(reason, Some(FinishReason::RowsLost), "after {steps} steps");
        assert!(expected.starts_with(&before), "what was said before stays true");
        assert_answer(&engine, &events, other, &plain.prompt, &plain);
        // Nothing of them is left, that of the conversation that was kept neither.
        assert!(engine.kept().is_empty() && engine.sequences.is_empty());
        assert_eq!(collect(&events, kept), (Vec::new(), None), "it had ended before");
        assert_eq!(engine.free_rows(), 8);
        assert_eq!(engine.pool.free_pages(), engine.pool.pages());
        // Asked for once more, with rows anew, it is served.
        let (request, stands_for) = with_rows(&mut engine, false);
        let again = engine.add(request.clone()).unwrap();
        events.clear();
        engine.run(&mut events).unwrap();
        assert_answer(&engine, &events, again, &stands_for, &request);
    }
}

#[test]
fn rows_of_before_a_loss_are_refused_after_it() {
    let bounds = Bounds { embeddings: 8, ..Bounds::default() };
    let setup = Setup { bounds, ..Setup::default() };
    let mut engine = engine(&setup, true);
    let (request, _) = with_rows(&mut engine, false);
    engine.add(Request::new([1], 2)).unwrap();
    setup.faults.losing_wait.store(1, Ordering::Relaxed);
    engine.run(&mut Vec::new()).unwrap();
    let error = engine.add(request).unwrap_err();
    assert!(matches!(error, EngineError::Rows(RowsError::Unknown { .. })), "{error}");
}

/// Else a step would read rows that are not there, and say nothing.
#[test]
fn an_engine_whose_rows_could_not_be_written_again_stays_suspended() {
    let bounds = Bounds { embeddings: 8, ..Bounds::default() };
    let setup = Setup { bounds, ..Setup::default() };
    let mut engine = engine(&setup, true);
    let (request, stands_for) = with_rows(&mut engine, false);
    let mut events = Vec::new();
    engine.suspend(SuspendedWeights::Keep, &mut events).unwrap();
    setup.faults.failing_write.store(1, Ordering::Relaxed);
    engine.resume(None).unwrap_err();
    assert_eq!(engine.model().suspended(), Some(SuspendedWeights::Keep));
    engine.resume(None).unwrap();
    assert_eq!(engine.model().suspended(), None);
    let id = engine.add(request.clone()).unwrap();
    engine.run(&mut events).unwrap();
    assert_answer(&engine, &events, id, &stands_for, &request);
}

/// Neither the step that makes rows, nor the one that takes them, nor what is between them has the
/// host read or write one.
#[test]
fn rows_of_another_model_come_past_the_host() {
    // A row of the tower's is the id that follows a text.
    let bounds = Bounds { logits: 1, ..Bounds::default() };
    let mut tower = engine(&Setup { bounds, ..Setup::default() }, false);
    tower.options.vocab = VOCAB;
    tower.model.read_back(0, false);
    let bounds = Bounds { embeddings: 8, ..Bounds::default() };
    let mut decoder = engine(&Setup { bounds, ..Setup::default() }, true);
    tower.model.fake_mut().host_accesses.clear();
    decoder.model.fake_mut().host_accesses.clear();
    for id in [7, 8, 9] {
        tower.add(Request::new([id], 1)).unwrap();
    }
    tower.run(&mut Vec::new()).unwrap();
    let (made, count) = tower.model.last_rows(0, 1).unwrap();
    assert_eq!(count, 3, "one step had them all");
    let before = decoder.model.fake().host_accesses.len();
    let source = RowSource::Output { model: &mut tower.model, output: 0, rows: &[2, 0, 1] };
    let rows = decoder.add_rows(source).unwrap();
    assert_eq!(decoder.model.fake().host_accesses.len(), before);
    let rows = vec![GivenRows { position: 1, rows }];
    let request = Request { rows, ..Request::new(vec![5; 6], 6) };
    let id = decoder.add(request.clone()).unwrap();
    let mut events = Vec::new();
    decoder.run(&mut events).unwrap();
    let [first, second, third] = [9, 7, 8].map(|id| next_id(&[id], Sampling::default()));
    assert_answer(&decoder, &events, id, &[5, first, second, third, 5, 5], &request);
    let meets = |engine: &Engine, rows: Address, bytes: u64| {
        let accesses = &engine.model.fake().host_accesses;
        assert!(!accesses.is_empty());
        accesses.iter().any(|&(at, n)| at.0 < rows.0 + bytes && rows.0 < at.0 + n)
    };
    assert!(!meets(&tower, made, 4 * count));
    let (_, given) = decoder.embeddings.take(1).unwrap();
    assert!(!meets(&decoder, given, 4 * 8));
    // Rows that the host gives are seen.
    decoder.add_rows(RowSource::Values(&[1.0])).unwrap();
    assert!(meets(&decoder, given, 4 * 8));
}
