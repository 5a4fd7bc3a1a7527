//! Rows in the place of tokens, when the device they are on is lost.

use super::*;

/// A prompt whose three ids from position 1 on are given as rows, and what they stand for.
fn with_rows(engine: &mut dyn Engine, keep: bool) -> (Request, Vec<u32>) {
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
        assert_eq!(engine.statistics().recoveries, 1);
        let (before, reason) = collect(&events, brings);
        assert_eq!(reason, Some(FinishReason::RowsLost), "after {steps} steps");
        assert!(expected.starts_with(&before), "what was said before stays true");
        assert_answer(&engine, &events, other, &plain.prompt, &plain);
        // Nothing of them is left, that of the conversation that was kept neither.
        assert!(engine.kept().is_empty() && engine.sequences.is_empty());
        assert_eq!(collect(&events, kept), (Vec::new(), None), "it had ended before");
        assert_eq!(engine.free_rows(), 8);
        assert_eq!(engine.pool().free_pages(), engine.pool().pages());
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
