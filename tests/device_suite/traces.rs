//! The parts of a traced step, by the device's own clock, are the step.

use crate::sequences::roles_of;
use crate::small_decoder::Setup;
use crate::target::{Cuda, Target};
use piecewise_runtime::engine::{BatchingEngine, Engine, EngineOptions, Request};
use piecewise_runtime::mode::GraphMode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FIRST_STEPS: usize = 4;

/// A processor's clock goes on while another thread runs between two marks, so only a GPU is held.
#[test]
fn cuda_parts_sum_to_the_step() {
    if !Cuda::is_there() {
        return;
    }
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let setup = Setup { mode, layers: 8, max_length: 512, ..Setup::default() };
        let model = setup.build::<Cuda>();
        let roles = roles_of(&model);
        let options = EngineOptions::of(&model, &roles);
        let mut engine = BatchingEngine::new(model, roles, options).unwrap();
        let records = Arc::new(Mutex::new(Vec::new()));
        let sink = records.clone();
        engine.observe(Box::new(move |record| sink.lock().unwrap().push(record.gpu_us.unwrap())));
        engine.trace_steps(true).unwrap();
        for prompt in [&[1, 2, 3][..], &[4, 5]] {
            engine.add(Request::new(prompt.to_vec(), 100)).unwrap();
        }
        engine.run(&mut Vec::new()).unwrap();
        let traces = engine.take_traces();
        // The first steps make their marks, each between two others.
        let marked: f64 = records.lock().unwrap().iter().skip(FIRST_STEPS).sum();
        let spans = traces.iter().skip(FIRST_STEPS).flat_map(|step| &step.spans);
        let parts: Duration = spans.map(|span| span.end - span.start).sum();
        let parts = parts.as_secs_f64() * 1e6;
        println!(
            "cuda {}: {parts:.0} us in parts, {marked:.0} us in {} steps",
            mode.name(),
            traces.len()
        );
        assert!((parts - marked).abs() <= 0.05 * marked, "{parts} of {marked} us");
    }
}
