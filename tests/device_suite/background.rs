//! Captures between steps: no step computes anything else, and few wait.

use crate::random_steps::turns;
use crate::sequences::{Sequences, Turn};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_ir::dtype::DType;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{CaptureWhen, GraphMode};
use piecewise_testing::{Rng, soak};
use std::time::{Duration, Instant};

const STEPS: u32 = 2000;

/// What the turns of a step are.
type Turns = dyn Fn(&mut Sequences, &Setup, &mut Rng) -> Vec<Turn>;

/// What steps of such turns gave, and how long each took from its submit to its outputs.
fn run(
    model: &mut CompiledModel,
    (setup, turns): (&Setup, &Turns),
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

/// A token of each of some sequences, which go on for as long as they may.
fn decodes(sequences: &mut Sequences, setup: &Setup, rng: &mut Rng) -> Vec<Turn> {
    let count = 1 + rng.below(sequences.list.len());
    let turn = |sequence: usize| {
        if sequences.list[sequence].length == setup.max_length {
            sequences.restart(sequence);
        }
        let feedback = sequences.can_feed_back(sequence);
        Turn { sequence, tokens: 1, rows: ChunkRows::Last, feedback }
    };
    (0..count).map(turn).collect()
}

/// Microseconds that a hundredth of the steps passes.
fn p99(times: &[Duration]) -> f64 {
    times[times.len() * 99 / 100].as_secs_f64() * 1e6
}

/// The steps of a model whose graphs come to be meanwhile have the bits of one that launches all of
/// them: random steps whose own graphs come to be, and decodes that replay while all the others do.
/// How long the slowest hundredth takes is said, and not held to anything: a host is busy at times.
pub(crate) fn captures_change_no_bit<T: Target>() {
    let setup = Setup { layers: T::BACKGROUND_LAYERS, dtype: DType::BF16, ..Setup::default() };
    let steps = soak(STEPS);
    let mut model = setup.build::<T>();
    let all = model.captured_graphs();
    let kinds: [(&str, &Turns); 2] = [("random steps", &turns), ("decodes", &decodes)];
    let before = kinds.map(|(_, turns)| {
        model.set_launches_only(true);
        let (expected, launched) = run(&mut model, (&setup, turns), steps);
        model.set_launches_only(false);
        (expected, launched, run(&mut model, (&setup, turns), steps).1)
    });
    drop(model);
    let setup = Setup { capture: CaptureWhen::Background, ..setup };
    for ((what, turns), (expected, launched, replayed)) in kinds.into_iter().zip(before) {
        let mut model = setup.build::<T>();
        assert_eq!(model.captured_graphs(), 0);
        let only_replays = what == "decodes";
        if only_replays {
            model.set_graph_mode(GraphMode::FullDecodeOnly, &mut |_| {}).unwrap();
            while model.capture_next().unwrap() {}
            model.set_graph_mode(setup.mode, &mut |_| {}).unwrap();
        }
        let (first, stats) = (model.captured_graphs(), model.statistics().clone());
        let (found, times) = run(&mut model, (&setup, turns), steps);
        assert!(found == expected, "{} {what} differ", T::NAME);
        let captured = model.captured_graphs() - first;
        let missed = model.statistics().misses() - stats.misses();
        assert!(captured > 0 && (missed == 0) == only_replays, "{captured} {missed}");
        let [launches, replays, background] = [&launched, &replayed, &times].map(|t| p99(t));
        println!(
            "{}: {steps} {what} while {captured} of {all} graphs were captured between them, {missed} \
             launched: p99 {background:.0} us, {:.2} times that of replays ({replays:.0} us), {:.2} times \
             that of launches ({launches:.0} us)",
            T::NAME,
            background / replays,
            background / launches,
        );
    }
}
