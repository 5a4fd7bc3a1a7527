//! Penalties, biases, masks, `min_p` and log-probabilities in an engine: the tokens are those of the
//! definition, computed in f64 from the logits of every position, however the steps ran.

use crate::small_decoder::{Setup, VOCAB};
use crate::target::{Breakable, Breaks, Cpu, Cuda, Strike, Target, in_own_process};
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::{RoleMap, Sampling};
use piecewise_runtime::engine::{
    Engine, EngineOptions, Request, RequestEvent, TokenConstraint, TokenLogprobs,
};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::RequestId;
use piecewise_runtime::words::{Checks, FinishReason, GraphMode};
use piecewise_testing::{FaultKind, FaultPoint};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Lets ids come whose remainder by three is that of their place, and ends after so many; fails where
/// it is told to.
#[derive(Clone, Debug, Default)]
struct ByThree {
    taken: Vec<u32>,
    length: usize,
    fails_at: Option<usize>,
    refuses_at: Option<usize>,
    allows_none_at: Option<usize>,
}

fn may_come(id: u32, place: usize) -> bool {
    id as usize % 3 == place % 3
}

impl TokenConstraint for ByThree {
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let place = self.taken.len();
        assert!(mask.len() == 2 && mask.iter().all(|word| *word == 0));
        if self.fails_at == Some(place) {
            return Err("the grammar is broken".to_owned());
        }
        let allows = self.allows_none_at != Some(place);
        for id in (0..VOCAB).filter(|&id| allows && may_come(id, place)) {
            mask[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<bool, String> {
        assert!(may_come(id, self.taken.len()), "{id} after {:?}", self.taken);
        if self.refuses_at == Some(self.taken.len()) {
            return Err("no id fits here".to_owned());
        }
        self.taken.push(id);
        Ok(self.taken.len() == self.length)
    }

    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

/// Requests that ask for one thing each, for several, and for none.
fn requests() -> Vec<Request> {
    let plain = Sampling::default();
    let samplings = [
        plain,
        Sampling { presence_penalty: 3.0, ..plain },
        Sampling { frequency_penalty: 1.5, ..plain },
        Sampling { repetition_penalty: 1.7, ..plain },
        plain,
        plain,
        Sampling { presence_penalty: 1.0, repetition_penalty: 1.4, ..plain },
        Sampling { temperature: 0.9, min_p: 0.1, frequency_penalty: 0.5, seed: 5, ..plain },
        plain,
    ];
    let request = |(number, sampling): (usize, Sampling)| {
        let length = 1 + number * 11 % 27;
        let ids: Vec<_> =
            (0..length).map(|i| ((number * 17 + i * i) % VOCAB as usize) as u32).collect();
        let mut request = Request { sampling, ..Request::new(ids, 24) };
        if matches!(number, 4 | 6) {
            request.logit_bias = [(41, 6.0), (3, -100.0), (7, 2.5)].into();
        }
        if matches!(number, 5 | 6) {
            let length = 10 + number;
            request.constraint = Some(Box::new(ByThree { length, ..ByThree::default() }));
        }
        request.logprobs = [None, Some(5), Some(0), Some(20)][number % 4];
        request
    };
    samplings.into_iter().enumerate().map(request).collect()
}

fn setup() -> Setup {
    Setup {
        sampling_controls: true,
        max_tokens: 16,
        sizes: vec![1, 2, 4, 8, 16],
        ..Setup::default()
    }
}

pub(crate) fn engine_of(model: CompiledModel, run_ahead: bool) -> Engine {
    let graph = model.module().graph();
    let roles = RoleMap::resolve(graph, model.symbols(), &OpRegistry::builtin()).unwrap();
    let options = EngineOptions { run_ahead, ..EngineOptions::of(&model, &roles) };
    Engine::new(model, roles, options).unwrap()
}

/// What a request got.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Got {
    pub ids: Vec<u32>,
    pub logprobs: Vec<Option<TokenLogprobs>>,
    pub prompt: Vec<(u32, TokenLogprobs)>,
    pub end: Option<(FinishReason, Option<String>)>,
}

pub(crate) fn got(events: &[RequestEvent]) -> BTreeMap<RequestId, Got> {
    let mut all: BTreeMap<RequestId, Got> = BTreeMap::new();
    for event in events {
        let got = all.entry(event.request()).or_default();
        match event {
            RequestEvent::PromptToken { id, logprobs, .. } => {
                assert!(got.ids.is_empty(), "a token of the prompt after a generated one");
                got.prompt.push((*id, (**logprobs).clone()));
            }
            RequestEvent::Token { id, logprobs, .. } => {
                got.ids.push(*id);
                got.logprobs.push(logprobs.as_deref().cloned());
            }
            RequestEvent::Finished { reason, message, .. } => {
                got.end = Some((*reason, message.as_deref().map(str::to_owned)));
            }
            _ => {}
        }
    }
    all
}

/// The requests in company: one joins after each step.
fn together(engine: &mut Engine, requests: Vec<Request>) -> Vec<Got> {
    let mut events = Vec::new();
    let mut ids = Vec::new();
    for request in requests {
        ids.push(engine.add(request).unwrap());
        engine.step(&mut events).unwrap();
    }
    engine.run(&mut events).unwrap();
    let mut all = got(&events);
    ids.iter().map(|id| all.remove(id).unwrap()).collect()
}

/// The logits after `ids`.
fn logits(engine: &mut Engine, ids: &[u32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    let request = Request::new(ids, 1);
    engine.logits(&request, &mut |_, rows| bytes.extend_from_slice(rows)).unwrap();
    let row = bytes.len() - 4 * VOCAB as usize;
    let floats = bytes[row..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    floats.collect()
}

/// The logit of an id by the definition, in f64 from lists of ids.
fn adjusted(request: &Request, prompt: &[u32], generated: &[u32], id: u32, logit: f32) -> f64 {
    if request.constraint.is_some() && !may_come(id, generated.len()) {
        return f64::NEG_INFINITY;
    }
    let s = request.sampling;
    let times = generated.iter().filter(|&&other| other == id).count();
    let bias = request.logit_bias.iter().find(|(other, _)| *other == id);
    let mut logit = f64::from(logit) + bias.map_or(0.0, |(_, bias)| f64::from(*bias));
    if times > 0 || prompt.contains(&id) {
        let repetition = f64::from(s.repetition_penalty);
        logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
    }
    logit -= f64::from(s.frequency_penalty) * times as f64;
    logit - f64::from(s.presence_penalty) * f64::from(times > 0)
}

/// Holds what a request got against the definition, token by token.
fn check(engine: &mut Engine, request: &Request, prompt: &[u32], got: &Got) {
    let length = if request.constraint.is_some() { got.ids.len() } else { 24 };
    assert_eq!(got.ids.len(), length);
    for (place, (&id, told)) in got.ids.iter().zip(&got.logprobs).enumerate() {
        let generated = &got.ids[..place];
        let logits = logits(engine, &[prompt, generated].concat());
        let scores =
            (0..VOCAB).map(|id| adjusted(request, prompt, generated, id, logits[id as usize]));
        let scores: Vec<f64> = scores.collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let temperature = f64::from(request.sampling.temperature);
        let within = match temperature > 0.0 {
            true => -temperature * f64::from(request.sampling.min_p).ln(),
            false => 0.0,
        };
        let short = largest - scores[id as usize];
        assert!(
            short <= within + 1e-3,
            "{id} is {short} below the largest at {place}: {request:?}"
        );
        assert_eq!(told.is_some(), request.logprobs.is_some());
        let Some(told) = told else { continue };
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let close = |id: u32, found: f32| {
            let expected = f64::from(logits[id as usize]) - sum.ln();
            assert!((f64::from(found) - expected).abs() < 1e-3, "{found}, not {expected}");
        };
        close(id, told.logprob);
        told.top.iter().for_each(|&(id, logprob)| close(id, logprob));
        assert_eq!(told.top.len() as u32, request.logprobs.unwrap());
        assert!(told.top.is_sorted_by(|a, b| a.1 >= b.1));
        let larger = logits.iter().filter(|&&logit| logit > logits[id as usize] + 1e-3).count();
        assert!(told.rank as usize > larger);
        if let Some((first, _)) = told.top.first().filter(|_| told.rank == 1) {
            assert_eq!(*first, id);
        }
    }
}

/// In every mode, in company and alone, with preemption and without: the tokens of the definition,
/// with no step that falls back.
pub(crate) fn tokens_are_those_of_the_definition<T: Target>() {
    let plain = Setup { mode: GraphMode::None, ..setup() };
    let mut reference = engine_of(plain.build::<T>(), false);
    let expected = together(&mut reference, requests());
    for (request, got) in requests().iter().zip(&expected) {
        check(&mut reference, request, &request.prompt, got);
        let alone = together(&mut reference, vec![again(request)]).remove(0);
        assert_eq!(alone.ids, got.ids, "alone: {request:?}");
    }
    let ends: Vec<_> = expected.iter().map(|got| got.end.clone().unwrap().0).collect();
    assert_eq!(ends[5..7], [FinishReason::Stop; 2]);
    assert_eq!((expected[5].ids.len(), expected[6].ids.len()), (15, 16));
    let compare = Checks { compare: true, ..Checks::default() };
    let poison = Checks { poison: true, ..Checks::default() };
    let tight = Some(112);
    for (setup, run_ahead) in [
        (Setup { mode: GraphMode::Full, ..setup() }, true),
        (Setup { mode: GraphMode::Piecewise, ..setup() }, true),
        (Setup { mode: GraphMode::Full, kv_rows: tight, checks: poison, ..setup() }, true),
        (Setup { mode: GraphMode::FullAndPiecewise, checks: compare, ..setup() }, false),
    ] {
        let mut engine = engine_of(setup.build::<T>(), run_ahead);
        let fallbacks = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&fallbacks);
        engine.observe(Box::new(move |step| sink.lock().unwrap().extend(step.fallback.clone())));
        let found = together(&mut engine, requests());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found.ids, &found.end), (&expected.ids, &expected.end), "{setup:?}");
        }
        assert_eq!(*fallbacks.lock().unwrap(), Vec::<String>::new());
        assert_eq!(
            engine.load().preemptions > 0,
            setup.kv_rows == tight,
            "{}",
            engine.load().preemptions
        );
    }
}

/// The same request, its constraint as it began.
fn again(request: &Request) -> Request {
    let mut copy = request.clone();
    if request.constraint.is_some() {
        let length = requests()
            .iter()
            .position(|other| other.prompt == request.prompt)
            .map_or(0, |number| 10 + number);
        copy.constraint = Some(Box::new(ByThree { length, ..ByThree::default() }));
    }
    copy
}

/// Prompts that are told of, among some that are not: longer than a step, begun as others were.
fn prompts() -> Vec<Request> {
    let request = |(number, length): (usize, usize)| {
        let ids: Vec<_> = (0..length).map(|i| ((i * i + i / 20) % VOCAB as usize) as u32).collect();
        let prompt_logprobs = [Some(3), None, Some(0), Some(20)][number % 4];
        Request { prompt_logprobs, ..Request::new(ids, 6) }
    };
    [38, 20, 1, 2, 17, 45, 33].into_iter().enumerate().map(request).collect()
}

/// In every mode, alone and in company, whatever is computed again: each token of a prompt once, with
/// what the logits before it say, and no step that falls back.
pub(crate) fn prompts_are_told_of<T: Target>() {
    let mut reference = engine_of(Setup { mode: GraphMode::None, ..setup() }.build::<T>(), false);
    let expected = together(&mut reference, prompts());
    for (request, got) in prompts().iter().zip(&expected) {
        let Some(likeliest) = request.prompt_logprobs else {
            assert!(got.prompt.is_empty());
            continue;
        };
        let ids: Vec<u32> = got.prompt.iter().map(|told| told.0).collect();
        assert_eq!(ids, request.prompt[1..]);
        for (before, (id, told)) in (1..).zip(&got.prompt) {
            let logits = logits(&mut reference, &request.prompt[..before]);
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let close = |id: u32, found: f32| {
                let expected = f64::from(logits[id as usize]) - sum.ln();
                assert!((f64::from(found) - expected).abs() < 1e-3, "{found}, not {expected}");
            };
            close(*id, told.logprob);
            told.top.iter().for_each(|&(id, logprob)| close(id, logprob));
            assert_eq!(told.top.len() as u32, likeliest);
        }
        let quiet = Request { prompt_logprobs: None, ..request.clone() };
        assert_eq!(together(&mut reference, vec![quiet])[0].ids, got.ids);
    }
    let poison = Checks { poison: true, ..Checks::default() };
    for (setup, run_ahead) in [
        (Setup { mode: GraphMode::Full, ..setup() }, true),
        (Setup { mode: GraphMode::Piecewise, ..setup() }, true),
        (Setup { mode: GraphMode::Full, kv_rows: Some(80), checks: poison, ..setup() }, true),
        (Setup { mode: GraphMode::FullAndPiecewise, ..setup() }, false),
    ] {
        let mut engine = engine_of(setup.build::<T>(), run_ahead);
        let fallbacks = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&fallbacks);
        engine.observe(Box::new(move |step| sink.lock().unwrap().extend(step.fallback.clone())));
        // What others leave in the prefix cache is there the second time.
        for _ in 0..2 {
            let found = together(&mut engine, prompts());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!((&found.ids, &found.end), (&expected.ids, &expected.end), "{setup:?}");
                let told = |got: &Got| Vec::from_iter(got.prompt.iter().map(|told| told.0));
                assert_eq!(told(found), told(expected), "{setup:?}");
                for ((_, found), (_, expected)) in found.prompt.iter().zip(&expected.prompt) {
                    assert!((found.logprob - expected.logprob).abs() < 1e-3, "{setup:?}");
                }
            }
        }
        assert_eq!(*fallbacks.lock().unwrap(), Vec::<String>::new());
    }
    let mut engine = engine_of(setup().build::<T>(), true);
    let kept = engine.add(Request { keep: true, ..Request::new([5], 2) }).unwrap();
    engine.run(&mut Vec::new()).unwrap();
    let more = Request { prompt_logprobs: Some(0), ..Request::new([5], 2) };
    let refused = engine.extend(kept, more).unwrap_err();
    assert!(refused.to_string().starts_with("prompt_logprobs = 0"), "{refused}");
}

/// A later turn starts from all ids before it as its prompt, and counts what it generates alone.
pub(crate) fn a_later_turn_counts_its_own_ids<T: Target>() {
    let mut engine = engine_of(setup().build::<T>(), true);
    let sampling =
        Sampling { presence_penalty: 2.0, repetition_penalty: 1.3, ..Sampling::default() };
    let first = Request { sampling, keep: true, ..Request::new([5, 9, 5], 12) };
    let id = engine.add(first).unwrap();
    engine.add(Request { sampling, ..Request::new([7; 20], 24) }).unwrap();
    engine.run(&mut Vec::new()).unwrap();
    let more = || Request { sampling, ..Request::new([11], 24) };
    let prompt = [engine.ids(id).unwrap(), &[11]].concat();
    engine.extend(id, more()).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    check(&mut engine, &more(), &prompt, &got(&events)[&id]);
}

/// A constraint that fails ends its own request, and says why; the others get their tokens.
pub(crate) fn a_constraint_that_fails_ends_its_request_alone<T: Target>() {
    let mut engine = engine_of(setup().build::<T>(), true);
    let expected = together(&mut engine, vec![Request::new([4, 8], 20)]).remove(0);
    let base = ByThree { length: 12, ..ByThree::default() };
    let constrained = |constraint: ByThree| Request {
        constraint: Some(Box::new(constraint)),
        ..Request::new([2, 3], 20)
    };
    let found = together(
        &mut engine,
        vec![
            Request::new([4, 8], 20),
            constrained(ByThree { fails_at: Some(3), ..base.clone() }),
            constrained(ByThree { refuses_at: Some(2), ..base.clone() }),
            constrained(ByThree { allows_none_at: Some(0), ..base.clone() }),
            constrained(base),
        ],
    );
    assert_eq!(found[0], expected);
    let ends: Vec<_> =
        found[1..].iter().map(|got| (got.ids.len(), got.end.clone().unwrap())).collect();
    let failed = |said: &str| (FinishReason::ConstraintFailed, Some(said.to_owned()));
    assert_eq!(
        ends,
        [
            (3, failed("the grammar is broken")),
            (2, failed("no id fits here")),
            (0, failed("it allows no id to come next")),
            (12, (FinishReason::Stop, None)),
        ]
    );
    assert_eq!(engine.load().free_kv_pages, engine.load().kv_pages);
}

/// A sequence whose mask needs its last id takes part in every second step at most; the others have a
/// token in each, submitted before the one before is read.
pub(crate) fn others_run_ahead_of_a_constrained_one<T: Target>() {
    let mut engine = engine_of(setup().build::<T>(), true);
    let rows = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&rows);
    engine.observe(Box::new(move |step| sink.lock().unwrap().push(step.rows)));
    let constraint = ByThree { length: 10, ..ByThree::default() };
    let constraint: Option<Box<dyn TokenConstraint>> = Some(Box::new(constraint));
    for request in [Request::new([4], 24), Request { constraint, ..Request::new([2], 20) }] {
        engine.add(request).unwrap();
    }
    let mut events = Vec::new();
    while engine.step(&mut events).unwrap() {
        let tokens = events.iter().filter(|e| matches!(e, RequestEvent::Token { .. })).count();
        let read: u32 = rows.lock().unwrap().iter().sum();
        assert_eq!(tokens as u32, read, "a token of each row that was read");
    }
    let rows = rows.lock().unwrap();
    assert_eq!(rows.len(), 24, "the plain one never waits: {rows:?}");
    assert_eq!(rows[..20], [2, 1].repeat(10), "{rows:?}");
}

/// Whatever the device fails at, ids count once.
fn a_failure_changes_no_token<T: Breakable>() {
    let registry = Arc::new(OpRegistry::builtin());
    let setup = Setup { mode: GraphMode::Full, ..setup() };
    let built = || {
        let (device, compiler, breaks) = T::breakable(&registry);
        (engine_of(setup.build_on::<T>(device, compiler.as_ref()), true), breaks)
    };
    let requests = || [requests(), prompts()].concat();
    let expected = together(&mut built().0, requests());
    for kind in [FaultKind::Refused, FaultKind::Asynchronous, FaultKind::Sticky] {
        let (mut engine, breaks) = built();
        for after in [4, 9, 17] {
            breaks.plan(Strike { point: FaultPoint::Replay, kind, after });
        }
        let found = together(&mut engine, requests());
        assert!(breaks.has_struck());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.ids, expected.ids, "{kind:?}");
            assert_eq!(found.prompt, expected.prompt, "{kind:?}");
        }
    }
}

#[test]
fn on_the_cpu_a_failure_changes_no_token() {
    a_failure_changes_no_token::<Cpu>();
}

#[test]
fn on_cuda_a_failure_changes_no_token() {
    if Cuda::is_there() {
        let test = "sampling_controls::on_cuda_a_failure_changes_no_token";
        in_own_process(test, a_failure_changes_no_token::<Cuda>);
    }
}
