//! The stepping thread allocates nothing on the heap while it replays or launches a step, but for what is
//! named here.
//!
//! Counters are of each thread, so that tests beside each other do not disturb them.

use crate::sequences::{Sequences, Turn, roles_of};
use crate::small_decoder::Setup;
use crate::support::counting_allocator::allocations;
use crate::target::{Breakable, Cpu};
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::{ChunkRows, Sampling};
use piecewise_runtime::engine::{Engine, EngineOptions, Request};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{CaptureWhen, GraphMode, StepMode};
use piecewise_testing::FaultPoint;
use piecewise_testing::Rng;
use piecewise_testing::host_time;
use std::sync::Arc;
use std::time::Duration;

const STEPS: usize = 200;
/// The first steps make what is reused from then on.
const FIRST: usize = 3;

/// What a library allocates on the stepping thread: rayon puts a job for its pool into a queue of
/// blocks of 63 jobs (crossbeam's injector), so that every 63rd job makes a block. A replay is one
/// job, and so is a launch: a piecewise step has one for each member, a full step has one.
fn blocks_of_rayon(model: &CompiledModel, mode: GraphMode) -> usize {
    let jobs = match mode {
        GraphMode::Full => 1,
        _ => model.module().stitch().unwrap().steps.len(),
    };
    (STEPS * jobs).div_ceil(63) + 1
}

/// Allocations from entry of `submit` to return of `read`, over many steps of one shape.
fn of_submits(model: &mut CompiledModel, turns: &[Turn], mode: StepMode) -> usize {
    let mut sequences = Sequences::of(model);
    let mut rng = Rng::new(1);
    let mut counted = 0;
    for number in 0..STEPS {
        let of_step = of_submit(model, turns, &mut sequences, &mut rng);
        assert_eq!(model.last_step().unwrap().mode, mode);
        counted += if number < FIRST { 0 } else { of_step };
    }
    counted
}

fn of_submit(
    model: &mut CompiledModel,
    turns: &[Turn],
    sequences: &mut Sequences,
    rng: &mut Rng,
) -> usize {
    (0..turns.len()).for_each(|sequence| sequences.restart(sequence));
    let view = sequences.fill(turns, rng);
    let inputs = view.data();
    allocations(|| {
        let ticket = model.submit(&inputs).unwrap();
        assert!(!model.read(&ticket).unwrap().bytes(1).unwrap().is_empty());
    })
}

#[test]
fn a_replayed_step_allocates_nothing() {
    let turn = |sequence, tokens| Turn { sequence, tokens, rows: ChunkRows::Last, feedback: false };
    let mixed = [turn(0, 9), turn(1, 1), turn(2, 4)];
    let decode = [turn(0, 1), turn(1, 1), turn(2, 1)];
    for threads in [1, 4] {
        let setup = Setup { threads, ..Setup::default() };
        for (mode, step_mode) in [
            (GraphMode::None, StepMode::None),
            (GraphMode::Piecewise, StepMode::Piecewise),
            (GraphMode::Full, StepMode::Full),
        ] {
            let mut model = Setup { mode, ..setup.clone() }.build::<Cpu>();
            let allowed = blocks_of_rayon(&model, mode);
            for turns in [&mixed[..], &decode[..]] {
                let found = of_submits(&mut model, turns, step_mode);
                assert!(
                    found <= allowed,
                    "{found} allocations in {STEPS} steps in {mode:?} with {threads} threads; \
                     rayon makes {allowed} at most"
                );
            }
        }
    }
}

/// Each step comes so much later than those before it that no graph is captured after it: by a host's time
/// that is held, and passes while a graph is captured.
#[test]
fn a_step_that_leaves_captures_to_later_ones_allocates_nothing() {
    let (mode, capture, sizes) =
        (GraphMode::Piecewise, CaptureWhen::Background, (1..=64).collect());
    let setup = Setup { mode, capture, sizes, ..Setup::default() };
    let (device, compiler, faults) = Cpu::breakable(&Arc::new(OpRegistry::builtin()));
    host_time::hold();
    faults.slow(FaultPoint::Capture, Duration::from_micros(100));
    let mut model = setup.build_on::<Cpu>(device, &*compiler);
    let (mut sequences, mut rng) = (Sequences::of(&model), Rng::new(1));
    let turns = [Turn { sequence: 0, tokens: 9, rows: ChunkRows::Last, feedback: false }];
    let (mut counted, mut captures) = (0, 0);
    for number in 0..10 {
        host_time::pass(Duration::from_millis(1 << number));
        let of_step = of_submit(&mut model, &turns, &mut sequences, &mut rng);
        let before = std::mem::replace(&mut captures, model.statistics().captures);
        if number >= FIRST {
            assert_eq!(before, captures, "step {number}");
            counted += of_step;
        }
    }
    assert!(model.capture_next().unwrap(), "graphs are missing all the time");
    let allowed = blocks_of_rayon(&model, mode);
    assert!(counted <= allowed, "{counted} allocations, of which rayon makes {allowed} at most");
}

#[test]
fn a_decode_step_of_the_engine_allocates_nothing() {
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let setup = Setup { mode, threads: 2, max_length: 512, ..Setup::default() };
        let model = setup.build::<Cpu>();
        let allowed = blocks_of_rayon(&model, mode);
        let roles = roles_of(&model);
        let options = EngineOptions::of(&model, &roles);
        let mut engine = Engine::new(model, roles, options).unwrap();
        for prompt in [&[1, 2, 3][..], &[4, 5]] {
            let mut request = Request::new(prompt.to_vec(), 300);
            request.sampling =
                Sampling { temperature: 0.7, top_k: 9, top_p: 0.9, seed: 3, ..Sampling::default() };
            engine.add(request).unwrap();
        }
        let mut events = Vec::with_capacity(2000);
        for _ in 0..20 {
            engine.step(&mut events).unwrap();
        }
        let before = events.len();
        let found = allocations(|| {
            for _ in 0..STEPS {
                engine.step(&mut events).unwrap();
            }
        });
        assert_eq!(events.len() - before, 2 * STEPS);
        assert!(found <= allowed, "{found} allocations in {STEPS} steps in {mode:?}, {allowed}");
    }
}
