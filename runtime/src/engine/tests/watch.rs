//! What those who watch get to see.

use super::*;
use crate::observe::{Histogram, Snapshot, Statistics, StepTraceWriter, slices};
use crate::words::{SpanKind, Usage};
use std::sync::mpsc;

#[test]
fn what_is_published_is_what_ran() {
    let mut engine = engine(&Setup::default(), true);
    let metrics = engine.metrics();
    assert_eq!(metrics.snapshot().statistics.steps, 0);
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = records.clone();
    engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.clone())));
    engine.set_graph_mode(GraphMode::FullDecodeOnly).unwrap();
    for prompt in 1..5 {
        engine.add(Request::new(vec![1; prompt], 3)).unwrap();
    }
    engine.run(&mut Vec::new()).unwrap();
    let Snapshot { statistics, load, graphs, .. } = metrics.snapshot();
    assert_eq!(statistics, *engine.model().statistics());
    assert_eq!(statistics.hits() + statistics.misses(), statistics.steps);
    assert_eq!(statistics.misses[Statistics::LAUNCHED_BY_MODE], 1, "the step of prompts");
    assert_eq!((load.running, load.free_kv_pages), (0, load.kv_pages));
    assert_eq!(graphs, engine.model().captured_graphs() as u64);
    let times = |histograms: &[Histogram; 3]| histograms.iter().map(Histogram::count).sum::<u64>();
    assert_eq!(times(&statistics.gpu_time), statistics.steps);
    assert_eq!(times(&statistics.wall_time), statistics.steps);
    // The fake device takes a microsecond for each command.
    let records = records.lock().unwrap();
    let gpu_us: f64 = records.iter().map(|record| record.gpu_us.unwrap()).sum();
    let counted: std::time::Duration = statistics.gpu_time.iter().map(|h| h.sum).sum();
    assert!((gpu_us - counted.as_secs_f64() * 1e6).abs() < 1e-6);
    assert!(records.iter().all(|record| record.gpu_us.unwrap() >= 3.0), "in, run, out");
    assert!(metrics.text().unwrap().contains("piecewise_steps_total{mode=\"full\",size="));
}

#[test]
fn every_step_is_recorded() {
    let setup = Setup { bounds: Bounds { tokens: 8, ..Bounds::default() }, ..Setup::default() };
    let mut engine = engine(&setup, true);
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = records.clone();
    engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.clone())));
    engine.add(Request::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 3)).unwrap();
    engine.add(Request::new([1, 2, 3], 2)).unwrap();
    engine.run(&mut Vec::new()).unwrap();
    let lines: Vec<_> = records.lock().unwrap().iter().map(|r| {
        format!(
            "context={} generation={} sequences={} rows={} tokens={} query={:?} {} size={:?} {:?}",
            r.context_tokens, r.generation_requests, r.sequences, r.rows, r.tokens.unwrap(),
            r.query_length, r.mode.name(), r.size, r.fallback
        )
    }).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn usage_tells_what_a_turn_took() {
    let mut engine = engine(&Setup::default(), true);
    let id = engine.add(Request { keep: true, ..Request::new([1, 2, 3], 4) }).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    assert_eq!(engine.kept(), [id]);
    engine.extend(id, Request::new([9, 9], 2)).unwrap();
    let fresh = Usage { prompt: 9, ..Usage::default() };
    assert_eq!(engine.usage(id), Some(fresh));
    engine.run(&mut events).unwrap();
    let usages = events.iter().filter_map(|event| match event {
        RequestEvent::Finished { usage, .. } => {
            Some(Usage { waited: Default::default(), ..*usage })
        }
        _ => None,
    });
    assert_eq!(
        usages.collect::<Vec<_>>(),
        [
            Usage { prompt: 3, generated: 4, ..Usage::default() },
            Usage { prompt: 9, cached: 6, generated: 2, ..Usage::default() },
        ]
    );
    assert_eq!(engine.usage(id), None);
}

/// The fake device takes a microsecond for each command, and marks take none.
#[test]
fn the_parts_of_a_traced_step_are_the_step() {
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = engine(&Setup { mode, ..Setup::default() }, true);
        let records = Arc::new(Mutex::new(Vec::new()));
        let sink = records.clone();
        engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.clone())));
        let (sender, traced) = mpsc::channel();
        let observer = move |step| {
            sender.send(step).unwrap();
            std::ops::ControlFlow::Continue(())
        };
        engine.observe_traces(Some(Box::new(observer))).unwrap();
        for prompt in 1..4 {
            engine.add(Request::new(vec![1; prompt], 4)).unwrap();
        }
        engine.run(&mut Vec::new()).unwrap();
        let traces = Vec::from_iter(traced.try_iter());
        let mut bytes = Vec::new();
        let mut writer = StepTraceWriter::new(engine.model().module(), "fake", &mut bytes).unwrap();
        let records = records.lock().unwrap();
        assert_eq!(traces.len(), records.len());
        for (step, record) in traces.iter().zip(&*records) {
            let sum: std::time::Duration =
                step.spans.iter().map(|span| span.end - span.start).sum();
            assert_eq!(sum.as_micros() as f64, record.gpu_us.unwrap());
            let between = step.spans.windows(2).all(|pair| pair[0].end == pair[1].start);
            assert!(between && step.submit.0 <= step.submit.1 && step.read.0 <= step.read.1);
            let steps = &engine.model().module().stitch().unwrap().steps;
            // The head is over other rows than what is ahead of it.
            let parts = match mode {
                GraphMode::None => steps.len(),
                GraphMode::Piecewise => 2,
                _ => 1,
            };
            assert_eq!(step.spans.len(), parts + 2, "{:?}", step.spans);
            if mode == GraphMode::Piecewise {
                assert_eq!(step.spans[1].kind, SpanKind::Stretch { first: 0, last: 1 });
            }
            writer.write(step).unwrap();
        }
        writer.flush().unwrap();
        let slices = slices(&bytes);
        let of_steps = slices.iter().filter(|slice| slice.starts_with("fake/steps ")).count();
        let joined = slices.iter().filter(|slice| slice.contains("p0 to test.mix")).count();
        assert_eq!(joined, if mode == GraphMode::Piecewise { traces.len() } else { 0 });
        assert_eq!(of_steps, traces.iter().map(|step| step.spans.len() + 1).sum::<usize>());
        assert_eq!(
            slices.iter().filter(|s| s.starts_with("host/submits submit")).count(),
            traces.len()
        );
        drop(records);
        engine.observe_traces(None).unwrap();
        engine.add(Request::new([1], 2)).unwrap();
        engine.run(&mut Vec::new()).unwrap();
        assert!(traced.try_iter().next().is_none(), "nobody asked for it");
    }
}

/// So many steps are in a profile as were asked for, or as there were until it was taken; those after it cost
/// no marks.
#[test]
fn a_profile_has_the_steps_that_were_asked_for() {
    let mut engine = engine(&Setup { mode: GraphMode::Full, ..Setup::default() }, true);
    let run = |engine: &mut Engine, tokens: u64| {
        engine.add(Request::new(vec![1; 3], tokens)).unwrap();
        engine.run(&mut Vec::new()).unwrap();
    };
    let steps_of = |bytes: &[u8]| {
        let slices = slices(bytes);
        slices.iter().filter(|slice| slice.starts_with("host/submits submit")).count()
    };
    assert!(matches!(engine.take_profile(), Err(ProfileError::None)));
    for (asked, ran, found) in [(3, 8, 3), (100, 5, 5), (1, 4, 1)] {
        engine.start_profile(asked).unwrap();
        let again = engine.start_profile(1).unwrap_err();
        assert!(matches!(again, ProfileError::Busy), "{again}");
        run(&mut engine, ran);
        assert_eq!(engine.watchers.traces.is_some(), asked > ran, "it ends by itself");
        assert!(matches!(engine.start_profile(1), Err(ProfileError::Busy)), "it was not taken");
        assert_eq!(steps_of(&engine.take_profile().unwrap()), found);
        assert!(matches!(engine.take_profile(), Err(ProfileError::None)));
    }
    engine.observe_traces(Some(Box::new(|_| std::ops::ControlFlow::Continue(())))).unwrap();
    assert!(matches!(engine.start_profile(1), Err(ProfileError::Busy)), "a file has them");
}
