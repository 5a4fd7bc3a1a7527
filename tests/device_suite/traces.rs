//! The parts of a traced step, by the device's own clock, are the step.

use crate::sequences::roles_of;
use crate::small_decoder::Setup;
use crate::target::{Cuda, Target};
use piecewise_runtime::engine::{Engine, EngineOptions, Request};
use piecewise_runtime::words::GraphMode;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const FIRST_STEPS: usize = 4;
const RUNS: usize = 3;

/// Microseconds that the marks of a step's ends are apart from those of its parts, however short it is:
/// two events beside each other on each end, and the clock's own half microsecond.
const BESIDE: f64 = 5.0;

/// Each step's microseconds by the marks at its ends, and in its parts.
fn steps(mode: GraphMode) -> Vec<[f64; 2]> {
    let setup = Setup { mode, layers: 28, max_length: 512, ..Setup::default() };
    let model = setup.build::<Cuda>();
    let roles = roles_of(&model);
    let options = EngineOptions::of(&model, &roles);
    let mut engine = Engine::new(model, roles, options).unwrap();
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = records.clone();
    engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.gpu_us.unwrap())));
    let (sender, traced) = mpsc::channel();
    let observer = move |step| {
        sender.send(step).unwrap();
        std::ops::ControlFlow::Continue(())
    };
    engine.observe_traces(Some(Box::new(observer))).unwrap();
    for prompt in [&[1, 2, 3][..], &[4, 5]] {
        engine.add(Request::new(prompt.to_vec(), 100)).unwrap();
    }
    engine.run(&mut Vec::new()).unwrap();
    let traces = Vec::from_iter(traced.try_iter());
    let marked = records.lock().unwrap().clone();
    assert_eq!(marked.len(), traces.len());
    let parts = traces.iter().map(|step| {
        let parts: Duration = step.spans.iter().map(|span| span.end - span.start).sum();
        parts.as_secs_f64() * 1e6
    });
    // The first steps make their marks, each between two others.
    marked.into_iter().zip(parts).map(|(marked, parts)| [marked, parts]).skip(FIRST_STEPS).collect()
}

/// A processor's clock goes on while another thread runs between two marks, so only a GPU is held; where
/// its host is interrupted between two, nothing runs on it meanwhile either, and so each step is held in
/// one of several runs.
#[test]
fn cuda_parts_sum_to_the_step() {
    if !Cuda::is_there() {
        return;
    }
    for mode in GraphMode::ALL {
        let runs: Vec<_> = (0..RUNS).map(|_| steps(mode)).collect();
        let apart = |[marked, parts]: [f64; 2]| (marked - parts).abs();
        let is_held = |step: [f64; 2]| apart(step) <= (0.05 * step[0]).max(BESIDE);
        let count = runs[0].len();
        assert!(count > 90 && runs.iter().all(|run| run.len() == count));
        for i in 0..count {
            let found: Vec<_> = runs.iter().map(|run| run[i]).collect();
            assert!(found.iter().any(|&step| is_held(step)), "{mode:?}, step {i}: {found:?}");
        }
        let all = runs.iter().flatten();
        let share = |&[marked, parts]: &[f64; 2]| (marked - parts).abs() / marked;
        println!(
            "cuda {}: of {} steps of {:.0} us in the mean {} are their parts, the farthest {:.1}% apart",
            mode.name(),
            RUNS * count,
            all.clone().map(|step| step[0]).sum::<f64>() / (RUNS * count) as f64,
            all.clone().filter(|&&step| is_held(step)).count(),
            100.0 * all.map(share).fold(0.0, f64::max),
        );
    }
}
