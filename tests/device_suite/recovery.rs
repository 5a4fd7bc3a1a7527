//! A failure at every capture, replay, launch and wait: every request ends with the tokens that it
//! ends with where nothing fails, a sequence's state takes each token once, other graphs stay, what
//! happened is counted, and what was lost is captured again.

use crate::host_kernel::HostKernel;
use crate::slot_model::{SLOTS, SlotSetup, ids_of, request};
use crate::target::{
    Breakable, Breaks, Cpu, Cuda, SimulatedCuda, Strike, Target, in_own_process,
    in_own_process_with,
};
use piecewise_runtime::engine::{Engine, RequestEvent};
use piecewise_runtime::observe::Statistics;
use piecewise_runtime::words::{
    CaptureWhen, Checks, GraphMode, GraphReport, GraphState, OnCaptureFailure,
};
use piecewise_testing::soak;
use piecewise_testing::{FaultKind, FaultPoint};
use std::ffi::OsStr;

/// Where something fails, and in which ways.
const POINTS: [(FaultPoint, &[FaultKind]); 4] = {
    use FaultKind::{Asynchronous, BrokenCapture, OutOfMemory, Refused, Sticky};
    [
        (FaultPoint::Capture, &[Refused, OutOfMemory, BrokenCapture, Asynchronous, Sticky]),
        (FaultPoint::Replay, &[Refused, OutOfMemory, Asynchronous, Sticky]),
        (FaultPoint::Launch, &[Refused, OutOfMemory, Asynchronous, Sticky]),
        (FaultPoint::Wait, &[Asynchronous, Sticky]),
    ]
};

/// The tokens of requests that arrive while others run.
pub(crate) fn serve(engine: &mut Engine) -> Vec<Vec<u32>> {
    serve_by_turns(std::slice::from_mut(engine)).remove(0)
}

/// The same of several engines, each of which makes a step after the other.
fn serve_by_turns(engines: &mut [Engine]) -> Vec<Vec<Vec<u32>>> {
    let mut served = vec![(Vec::new(), Vec::new()); engines.len()];
    for number in 0..6 {
        for (engine, (ids, events)) in engines.iter_mut().zip(&mut served) {
            ids.push(engine.add(request(number)).unwrap());
            engine.step(events).unwrap();
        }
    }
    while engines.iter().any(|engine| engine.has_work()) {
        for (engine, (_, events)) in engines.iter_mut().zip(&mut served) {
            engine.step(events).unwrap();
        }
    }
    assert!(engines.iter().all(|engine| engine.slots().free_slots() as u64 == SLOTS));
    let tokens = served.into_iter().map(|(ids, events)| {
        let mut tokens = ids_of(&events);
        ids.iter().map(|id| tokens.remove(id).unwrap_or_default()).collect()
    });
    tokens.collect()
}

/// The modes, and whether their graphs are captured between steps. Elsewhere captures fail in the
/// middle of steps where the first step that wants one makes it, and the others are made at start.
const MODES: [(GraphMode, bool); 6] = [
    (GraphMode::None, false),
    (GraphMode::Piecewise, false),
    (GraphMode::Full, false),
    (GraphMode::FullDecodeOnly, false),
    (GraphMode::FullAndPiecewise, false),
    (GraphMode::FullAndPiecewise, true),
];

pub(crate) fn setup<T: Target>(mode: GraphMode, capture: CaptureWhen) -> SlotSetup {
    // Where kernels do nothing, poison would be read back.
    let poison = T::NAME != SimulatedCuda::NAME;
    SlotSetup {
        capture,
        on_capture_failure: OnCaptureFailure::Launch,
        strict: false,
        checks: Checks { poison, addresses: true, compare: false },
        ..SlotSetup::checked(mode)
    }
}

/// Requests that end with the right tokens where the failure strikes; how many other graphs were there
/// then and stayed. Nothing where so many calls don't come.
fn struck<T: Breakable>(
    (mode, between_steps): (GraphMode, bool),
    strike: Strike,
    expected: &[Vec<u32>],
) -> Option<usize> {
    let registry = SlotSetup::registry();
    let (device, compiler, breaks) = T::breakable(&registry);
    let capture = match strike.point {
        _ if between_steps => CaptureWhen::Background,
        FaultPoint::Capture => CaptureWhen::Lazy,
        _ => CaptureWhen::Startup,
    };
    let mut engine = setup::<T>(mode, capture).engine_on::<T>(&registry, device, &*compiler);
    let graphs = engine.model().captured_graphs();
    let case = format!("{} {mode:?} {capture:?} {strike:?}", T::NAME);
    breaks.plan(strike);
    assert_eq!(serve(&mut engine), expected, "{case}");
    if !breaks.has_struck() {
        return None;
    }
    let stats = engine.model().statistics().clone();
    let is_refused = matches!(
        strike.kind,
        FaultKind::Refused | FaultKind::OutOfMemory | FaultKind::BrokenCapture
    );
    let at = |point| u64::from(is_refused && strike.point == point);
    let found = [stats.capture_failures, stats.refused_replays, engine.retried_steps()];
    let mut due = [FaultPoint::Capture, FaultPoint::Replay, FaultPoint::Launch].map(at);
    if between_steps && strike.point == FaultPoint::Launch && found[0] > 0 {
        // It was one that a capture between steps records.
        due.swap(0, 2);
    }
    assert_eq!(found, due, "{case}");
    assert_eq!(stats.recoveries, u64::from(!is_refused), "{case}");
    assert_eq!(stats.misses["replay_refused"], at(FaultPoint::Replay), "{case}");
    let left = engine.model().captured_graphs() as u64;
    assert!(left + at(FaultPoint::Replay) >= graphs as u64, "a graph of the start is gone: {case}");
    let mut stayed = 0;
    if is_refused {
        let reports = engine.model().graphs();
        let (failed, others): (Vec<_>, Vec<_>) =
            reports.iter().filter(|graph| was_tried(graph)).partition(|g| g.counts.failures > 0);
        assert_eq!(failed.len() as u64, found[0] + found[1], "{case}");
        let stays = |g: &&GraphReport| g.state == GraphState::Ready && g.counts.recaptures == 0;
        assert!(others.iter().all(stays), "another graph did not stay: {case}: {others:?}");
        stayed = others.len();
    }
    // What the same requests want is captured again, and nothing falls back any more.
    while between_steps && engine.capture_next().unwrap() {}
    assert_eq!(serve(&mut engine), expected, "{case}");
    let again = engine.model().statistics();
    assert_eq!(again.recoveries, stats.recoveries, "{case}");
    let missed = |stats: &Statistics| stats.misses() - stats.misses[Statistics::LAUNCHED_BY_MODE];
    assert_eq!(missed(again), missed(&stats), "{case}");
    assert_eq!(again.hits() + again.misses(), again.steps, "{case}");
    assert!(mode == GraphMode::None || again.hits() > stats.hits(), "{case}");
    let lacking = |g: &&GraphReport| was_tried(g) && g.state != GraphState::Ready;
    assert_eq!(engine.model().graphs().iter().filter(lacking).count(), 0, "{case}");
    Some(stayed)
}

/// Whether it was captured, or would have been.
fn was_tried(graph: &GraphReport) -> bool {
    graph.counts.captures + graph.counts.failures > 0
}

/// Of the calls at which something fails, the share that this process takes: `PIECEWISE_SHARD=2/8` is
/// the third of eight, since all of them take long on a GPU.
fn shard() -> (u32, u32) {
    let given = std::env::var("PIECEWISE_SHARD").ok();
    let numbers = given.as_deref().and_then(|given| given.split_once('/'));
    numbers.map_or((0, 1), |(i, n)| (i.parse().unwrap(), n.parse().unwrap()))
}

/// Every failure at some calls; in a long run one at each call, the failures in turn, or, in one of more
/// than twice as long, each failure at each call.
pub(crate) fn no_failure_loses_a_request<T: Breakable>(test: &str) {
    let body = || {
        // Holds the context, which is otherwise made anew for every engine.
        let _held = T::breakable(&SlotSetup::registry());
        let setup = setup::<T>(GraphMode::None, CaptureWhen::Startup);
        let expected = serve(&mut setup.engine::<T>());
        let (mut count, (first, shards)) = (0, shard());
        let every = || (first..).step_by(shards as usize);
        for (number, mode) in MODES.into_iter().enumerate() {
            for (point, kinds) in POINTS {
                let mut stayed = 0;
                let mut strike = |strikes: &mut dyn Iterator<Item = Strike>| {
                    let others = strikes.map_while(|strike| struck::<T>(mode, strike, &expected));
                    others.inspect(|others| stayed += others).count()
                };
                let at = |kind, after| Strike { point, kind, after };
                let found: usize = match soak(1) {
                    1 => {
                        kinds.iter().map(|&k| strike(&mut T::AFTER.iter().map(|&n| at(k, n)))).sum()
                    }
                    2 => {
                        let in_turn = kinds.iter().cycle().skip(number);
                        strike(&mut every().zip(in_turn).map(|(n, &kind)| at(kind, n)))
                    }
                    _ => kinds.iter().map(|&k| strike(&mut every().map(|n| at(k, n)))).sum(),
                };
                println!(
                    "{} {mode:?}: {found} failures at a {point:?}, {stayed} times another graph stayed",
                    T::NAME
                );
                let no_graph = mode.0 == GraphMode::None || point == FaultPoint::Wait;
                assert!(no_graph || found == 0 || shards > 1 || stayed > 0, "{mode:?} {point:?}");
                count += found;
            }
        }
        let some = T::AFTER.len();
        assert!(shards > 1 || count > 14 * some, "only {count} failures struck");
        println!("{}: {count} failures in turn lost no request", T::NAME);
    };
    alone::<T>(test, body);
}

fn alone<T: Breakable>(test: &str, body: impl FnOnce()) {
    match T::IS_SHARED {
        true => in_own_process(test, body),
        false => body(),
    }
}

/// What one model's step loses may be all that another has on the device: both go on.
pub(crate) fn two_models_outlive_their_device<T: Breakable>(test: &str) {
    alone::<T>(test, || {
        let setup = setup::<T>(GraphMode::FullAndPiecewise, CaptureWhen::Startup);
        let expected = vec![serve(&mut setup.engine::<T>()); 2];
        let registry = SlotSetup::registry();
        let (device, compiler, breaks) = T::breakable(&registry);
        let shared = T::share(&*device, &registry);
        let mut engines = [device, shared]
            .map(|device| setup.engine_on::<T>(&registry, device, compiler.as_ref()));
        let mut recoveries = 0;
        for (point, after) in
            [(FaultPoint::Replay, 0), (FaultPoint::Replay, 5), (FaultPoint::Wait, 4)]
        {
            breaks.plan(Strike { point, kind: FaultKind::Sticky, after });
            assert_eq!(serve_by_turns(&mut engines), expected, "{} {point:?} {after}", T::NAME);
            assert!(breaks.has_struck(), "{} {point:?} {after}", T::NAME);
            let found: u64 =
                engines.iter().map(|engine| engine.model().statistics().recoveries).sum();
            let lost = found - recoveries;
            // Only a driver's context holds both.
            assert_eq!(lost, if T::NAME == Cpu::NAME { 1 } else { 2 }, "{} {point:?}", T::NAME);
            recoveries = found;
            assert_eq!(serve_by_turns(&mut engines), expected, "{} after {point:?}", T::NAME);
        }
    });
}

/// A graph whose replay is refused three times in a row is launched from then on, with the right tokens,
/// until graphs are enabled again.
pub(crate) fn three_refusals_disable_a_graph<T: Breakable>(test: &str) {
    alone::<T>(test, || {
        let engine = |mode| {
            let registry = SlotSetup::registry();
            let (device, compiler, breaks) = T::breakable(&registry);
            let setup = setup::<T>(mode, CaptureWhen::Startup);
            (setup.engine_on::<T>(&registry, device, &*compiler), breaks)
        };
        // A prompt of one token: every step wants the same graphs.
        let ended = |engine: &mut Engine, mut events: Vec<RequestEvent>| {
            engine.run(&mut events).unwrap();
            ids_of(&events).into_values().collect::<Vec<_>>()
        };
        let expected = {
            let (mut engine, _) = engine(GraphMode::None);
            engine.add(request(0)).unwrap();
            ended(&mut engine, Vec::new())
        };
        for mode in [GraphMode::Piecewise, GraphMode::Full] {
            let (mut engine, breaks) = engine(mode);
            let (all, mut events) = (engine.model().captured_graphs(), Vec::new());
            engine.add(request(0)).unwrap();
            let (point, kind) = (FaultPoint::Replay, FaultKind::Refused);
            for refusals in 1..=3 {
                breaks.plan(Strike { point, kind, after: 0 });
                engine.step(&mut events).unwrap();
                assert!(breaks.has_struck(), "{} {mode:?}: refusal {refusals}", T::NAME);
                assert_eq!(engine.model().statistics().misses["replay_refused"], refusals);
            }
            let disabled = |engine: &Engine| {
                let graphs = engine.model().graphs().into_iter();
                graphs.filter(|g| g.state == GraphState::Disabled).collect::<Vec<_>>()
            };
            let [refused] = disabled(&engine)[..] else { panic!("{:?}", disabled(&engine)) };
            assert_eq!((refused.counts.failures, engine.model().captured_graphs()), (3, all - 1));
            engine.step(&mut events).unwrap();
            let stats = engine.model().statistics();
            assert_eq!(
                (stats.misses["not_captured"], stats.hits()),
                (1, 0),
                "{} {mode:?}",
                T::NAME
            );
            assert_eq!(engine.enable_graphs().unwrap(), all, "{} {mode:?}", T::NAME);
            assert_eq!(ended(&mut engine, events), expected, "{} {mode:?}", T::NAME);
            let stats = engine.model().statistics();
            assert_eq!((stats.misses["not_captured"], stats.misses["replay_refused"]), (1, 3));
            assert!(stats.hits() > 0 && disabled(&engine).is_empty(), "{} {mode:?}", T::NAME);
        }
    });
}

/// What a kernel may do wrong, each of which is an error of its own to the driver.
const CRASHES: [(&str, &str); 4] = [
    ("an illegal address", "*at = 1;"),
    ("a misaligned address", "__shared__ char bytes[8]; *(volatile int *)(bytes + one) = 1;"),
    ("a trap", "asm volatile(\"trap;\");"),
    ("a failed assertion", "__assertfail(\"planted\", \"crash\", 1, \"crash\", 1);"),
];

/// A kernel that does something wrong beside the steps: where the driver refuses the process from then on,
/// even a new context, the engine says so each time that it is asked, and keeps its requests; where it
/// does not, every request ends with its tokens.
#[test]
fn cuda_a_crashed_kernel_is_survived_or_said_to_outlive_the_context() {
    const TEST: &str = "recovery::cuda_a_crashed_kernel_is_survived_or_said_to_outlive_the_context";
    const WHICH: &str = "PIECEWISE_CRASH";
    if !Cuda::is_there() {
        return;
    }
    for (name, body) in CRASHES {
        // A child has one of them.
        if std::env::var(WHICH).is_ok_and(|which| which != name) {
            continue;
        }
        in_own_process_with(TEST, &[(WHICH, OsStr::new(name))], || {
            let source = format!(
                "extern \"C\" __device__ void __assertfail(const char *, const char *, unsigned, \
                 const char *, unsigned long);\n\
                 extern \"C\" __global__ void crash(int *at, int one) {{ {body} }}"
            );
            let crash = HostKernel::load(&source, "crash").unwrap();
            let engine = |mode| setup::<Cuda>(mode, CaptureWhen::Startup).engine::<Cuda>();
            let requests = [1, 2].map(request);
            let add =
                |engine: &mut Engine| requests.clone().map(|request| engine.add(request).unwrap());
            let mut launched = engine(GraphMode::None);
            let (expected, mut events) = (add(&mut launched), Vec::new());
            launched.run(&mut events).unwrap();
            let all = ids_of(&events);
            let expected = expected.map(|id| all[&id].clone());
            drop(launched);

            let mut engine = engine(GraphMode::Full);
            let mut events = Vec::new();
            let ids = add(&mut engine);
            for _ in 0..4 {
                engine.step(&mut events).unwrap();
            }
            let known = ids.map(|id| engine.ids(id).unwrap().to_vec());
            crash.launch(0, 1, 1, &mut [8, 1]).unwrap();
            match engine.run(&mut events) {
                Ok(()) => {
                    let found = ids_of(&events);
                    assert_eq!(ids.map(|id| found[&id].clone()), expected, "{name}");
                    assert_eq!(engine.model().statistics().recoveries, 1, "{name}");
                    println!("cuda: {name} is survived");
                }
                Err(error) => {
                    let again = engine.run(&mut events).unwrap_err();
                    for error in [error, again] {
                        let error = error.to_string();
                        let is_said =
                            error.contains("anew") && error.contains("start the program again");
                        assert!(is_said, "{name}: {error}");
                    }
                    assert!(engine.has_work());
                    for (id, known) in ids.iter().zip(&known) {
                        assert!(engine.ids(*id).unwrap().starts_with(known), "{name}");
                    }
                    println!("cuda: {name} outlives the context");
                }
            }
        });
    }
}
