//! Captures between steps: no step computes anything else, and few wait.

use crate::random_steps::turns;
use crate::sequences::Sequences;
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_backend::device::Device;
use piecewise_ir::dtype::DType;
use piecewise_ir::testing::{Rng, soak};
use piecewise_runtime::mode::StepMode;
use piecewise_runtime::model::{CaptureWhen, CompiledModel};
use std::time::{Duration, Instant};

const STEPS: u32 = 2000;

/// What random steps gave, and how long each took from its submit to its outputs.
fn run<D: Device>(
    model: &mut CompiledModel<D>,
    setup: &Setup,
    steps: u32,
) -> (Vec<u64>, Vec<Duration>) {
    let mut sequences = Sequences::of(model);
    let mut rng = Rng::new(17);
    let (mut given, mut times) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let turns = turns(&mut sequences, setup, &mut rng);
        let view = sequences.fill(&turns, &mut rng);
        let started = Instant::now();
        let ticket = model.submit(&view.data()).unwrap();
        let outputs = model.read(&ticket).unwrap();
        times.push(started.elapsed());
        given.push([0, 1].map(|i| digest(outputs.bytes(i).unwrap())).into_iter().sum());
    }
    times.sort_unstable();
    (given, times)
}

fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step) >> 1
}

/// The steps of a model whose graphs come to be meanwhile have the bits of one that launches all of
/// them. How long the slowest hundredth takes is said, and held by nothing here.
pub(crate) fn captures_change_no_bit<T: Target>() {
    let setup = Setup { layers: T::BACKGROUND_LAYERS, dtype: DType::BF16, ..Setup::default() };
    let steps = soak(STEPS);
    let mut launched = setup.build::<T>();
    launched.set_launches_only(true);
    let (expected, launched_times) = run(&mut launched, &setup, steps);
    let all = launched.captured_graphs();
    launched.set_launches_only(false);
    let (_, replayed_times) = run(&mut launched, &setup, steps);
    drop(launched);
    let setup = Setup { capture: CaptureWhen::Background, ..setup };
    let mut model = setup.build::<T>();
    assert_eq!(model.captured_graphs(), 0);
    let (found, times) = run(&mut model, &setup, steps);
    assert!(found == expected, "{} steps differ", T::NAME);
    let captured = model.captured_graphs();
    let by_mode = model.statistics().steps_by_mode;
    assert!(captured > 0 && by_mode[StepMode::None as usize] > 0, "{captured} {by_mode:?}");
    let p99 = |times: &[Duration]| times[times.len() * 99 / 100].as_secs_f64() * 1e6;
    let [launches, replays, background] =
        [&launched_times, &replayed_times, &times].map(|t| p99(t));
    println!(
        "{}: {steps} steps while {captured} of {all} graphs were captured between them: p99 of a step \
         {background:.0} us, {launches:.0} us where all are launched ({:.2} times), {replays:.0} us \
         where every graph is there",
        T::NAME,
        background / launches,
    );
}
