//! Logits that are NaN since a row of the KV cache is: the request ends with an error however it
//! samples, and no other notices, in every mode and one step ahead.

use crate::sampling_controls::{Got, engine_of, got};
use crate::small_decoder::{Setup, VOCAB};
use crate::target::Target;
use piecewise_backend::device::Address;
use piecewise_runtime::batch::Sampling;
use piecewise_runtime::engine::{Engine, Request, RequestEvent, TokenConstraint};
use piecewise_runtime::words::{FinishReason, GraphMode, roles};

/// Steps of all together before a row is NaN.
const STEPS: usize = 4;

/// Lets every id come.
#[derive(Clone, Debug)]
struct All;

impl TokenConstraint for All {
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        (0..VOCAB as usize).for_each(|id| mask[id / 32] |= 1 << (id % 32));
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<bool, String> {
        Ok(false)
    }

    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

/// One request for each way to sample.
fn requests(controls: bool) -> Vec<Request> {
    let base = || Request::new(vec![5, 9, 33], 20);
    let greedy = Sampling::default();
    let drawn = Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 4, ..greedy };
    let mut requests = vec![base(), Request { sampling: drawn, ..base() }];
    if controls {
        let sampling = Sampling { presence_penalty: 1.0, min_p: 0.05, ..drawn };
        let constraint: Option<Box<dyn TokenConstraint>> = Some(Box::new(All));
        let told = Request::new((0..40).map(|i| i % VOCAB).collect::<Vec<_>>(), 20);
        requests.extend([
            Request { sampling, logprobs: Some(3), ..base() },
            Request { constraint, logit_bias: vec![(7, 1.0)].into(), ..base() },
            Request { prompt_logprobs: Some(2), ..told },
        ]);
    }
    requests
}

/// Where the first position of the only request that was computed lies in one layer, and its bytes.
fn first_row(engine: &mut Engine) -> (Address, u64) {
    let model = engine.model_mut();
    let graph = model.module().graph();
    let state = graph.states().iter().find(|s| s.role.as_deref() == Some(roles::KV_CACHE));
    let value = state.unwrap().value;
    let bounds = &model.memory().layout().bounds;
    let (bytes, row) = (graph.ty(value).bytes(bounds), graph.ty(value).row().bytes(bounds));
    let place = model.memory().address(graph, value).unwrap();
    let mut rows = vec![0; bytes as usize];
    model.device_mut().read(place, &mut rows).unwrap();
    let first = rows.iter().position(|byte| *byte != 0).unwrap() as u64 / row;
    (place.offset(first * row), row)
}

/// What the request, two beside it and one after it got, and how many tokens each had when it ended.
fn run(engine: &mut Engine, request: Request, spoils: bool) -> (Vec<Got>, Vec<usize>) {
    let mut events = Vec::new();
    let first = engine.add(request.clone()).unwrap();
    engine.step(&mut events).unwrap();
    let (row, bytes) = first_row(engine);
    let logprobs = request.logprobs.or(request.prompt_logprobs);
    let beside = |ids: &[u32]| Request { logprobs, ..Request::new(ids, 40) };
    let mut ids = vec![first];
    ids.extend([&[11, 2][..], &[40]].map(|prompt| engine.add(beside(prompt)).unwrap()));
    for _ in 0..if request.prompt_logprobs.is_some() { 0 } else { STEPS } {
        engine.step(&mut events).unwrap();
    }
    if spoils {
        engine.model_mut().device_mut().write(row, &vec![0xff; bytes as usize]).unwrap();
    }
    let is_over = |events: &[RequestEvent]| {
        let is_end = |event: &RequestEvent| matches!(event, RequestEvent::Finished { .. });
        events.iter().any(|event| event.request() == first && is_end(event))
    };
    while !is_over(&events) {
        engine.step(&mut events).unwrap();
    }
    let so_far = got(&events);
    let lengths = ids.iter().map(|id| so_far.get(id).map_or(0, |got| got.ids.len())).collect();
    // It gets the pages of the first.
    ids.push(engine.add(beside(&[5, 9, 33, 1])).unwrap());
    engine.run(&mut events).unwrap();
    let mut all = got(&events);
    (ids.iter().map(|id| all.remove(id).unwrap()).collect(), lengths)
}

pub(crate) fn a_request_of_nan_ends_and_no_other_notices<T: Target>() {
    for (mode, run_ahead, controls) in [
        (GraphMode::None, true, false),
        (GraphMode::Full, true, false),
        (GraphMode::Full, true, true),
        (GraphMode::Piecewise, true, true),
        (GraphMode::FullAndPiecewise, false, true),
    ] {
        let setup = Setup {
            mode,
            sampling_controls: controls,
            max_tokens: 16,
            sizes: vec![1, 2, 4, 8, 16],
            ..Setup::default()
        };
        let mut sound = engine_of(setup.build::<T>(), run_ahead);
        let mut engine = engine_of(setup.build::<T>(), run_ahead);
        for (number, request) in (1..).zip(requests(controls)) {
            let case = format!("{mode:?} {run_ahead} {request:?}");
            let (expected, _) = run(&mut sound, request.clone(), false);
            let (found, lengths) = run(&mut engine, request, true);
            let (reason, message) = found[0].end.clone().unwrap();
            assert_eq!(reason, FinishReason::BadLogits, "{case}");
            let message = message.unwrap();
            assert!(message.contains("NaN") && message.contains("in f32"), "{message}");
            let (ids, all) = (&found[0].ids, &expected[0].ids);
            assert!(ids.len() < all.len() && all.starts_with(ids), "{case}: {ids:?} {all:?}");
            assert!(expected[0].prompt.starts_with(&found[0].prompt), "{case}");
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate().skip(1) {
                assert_eq!((&found.ids, &found.end), (&expected.ids, &expected.end), "{case}");
                // To the bit while the batch is the same.
                let same = lengths.get(place).copied().unwrap_or(0);
                assert_eq!(found.logprobs[..same], expected.logprobs[..same], "{case}");
            }
            assert_eq!(engine.load().bad_logits, number, "{case}");
            assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
            for engine in [&mut sound, &mut engine] {
                engine.clear_prefix_cache();
                zero_states(engine);
            }
        }
    }
}

/// So that the next request is the only one that left something.
fn zero_states(engine: &mut Engine) {
    let states = engine.model().memory().states;
    let zeros = vec![0; states.bytes as usize];
    engine.model_mut().device_mut().write(states.base, &zeros).unwrap();
}
