//! Choosing by measurement, on a device whose ways have planted costs.

use crate::batch::full_steps;
use crate::device::{Gain, Verdict, WaysOrigin};
use crate::steps::tests::{Model, expected, sampled, submit};

use crate::testing::{FakeProgram, Planted, Setup};
use crate::words::StepSizes;
use crate::words::{GraphMode, StepMode};
use piecewise_backend::artifact::Choice;
use piecewise_backend::device::Program;
use piecewise_backend::store::MemoryStore;
use piecewise_backend::tuning::{TuneMode, TuningReport};
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Two alternatives of two parts with three ways and two.
const WAYS: [[usize; 2]; 2] = [[3, 2], [1, 2]];

fn setup(cost: impl Fn(&[FakeProgram], u64) -> f64 + Send + Sync + 'static) -> Setup {
    let planted =
        Planted { alternatives: WAYS.to_vec(), cost: Arc::new(cost), ..Planted::default() };
    let mode = GraphMode::Full;
    Setup { planted, tune: TuneMode::Measure, mode, ..Setup::default() }
}

/// Only steps of four tokens have programs.
fn one_step(setup: &mut Setup) {
    (setup.token_sizes, setup.batch_sizes) = (vec![4], vec![4]);
    setup.query_lengths.clear();
}

/// A step's cost as the sum over its programs.
fn sum(
    of: impl Fn(&FakeProgram) -> f64 + Send + Sync + 'static,
) -> impl Fn(&[FakeProgram], u64) -> f64 + Send + Sync + 'static {
    move |programs, _| programs.iter().map(&of).sum()
}

fn fake(program: &Program) -> &FakeProgram {
    program.of().unwrap()
}

fn choice(alternative: usize, ways: &[usize]) -> Choice {
    Choice { alternative, ways: ways.to_vec() }
}

/// How each op is bound at the sizes that are captured: the same at all.
fn bound(model: &Model) -> Vec<(String, Choice)> {
    let of = |member: &crate::device::Member| {
        let first = fake(&member.sized[0].1);
        assert!(member.sized.iter().all(|(_, program)| fake(program).choice == first.choice));
        assert_eq!(fake(&member.general).choice, Choice::default());
        (first.op.clone(), first.choice.clone())
    };
    model.members.list.iter().map(of).collect()
}

fn all(choice: &Choice) -> Vec<(String, Choice)> {
    ["test.embed", "test.mix", "test.head"].map(|op| (op.to_owned(), choice.clone())).into()
}

/// The programs that are not bound by their first ways.
fn others(model: &Model) -> usize {
    let programs = model.members.list.iter().flat_map(|member| &member.sized);
    programs.filter(|(_, program)| fake(program).choice != Choice::default()).count()
}

fn tuning(model: &Model) -> TuningReport {
    TuningReport { time: Duration::ZERO, ..model.statistics().tuning }
}

/// Microseconds of a way of each part: what the second way of the second part gains depends on the first
/// part.
fn together(program: &FakeProgram) -> f64 {
    match (program.choice.alternative, program.choice.way(0), program.choice.way(1)) {
        (0, 0, 0) => 100.0,
        (0, 1, 0) => 95.0,
        (0, 2, 0) => 90.0,
        (0, 2, 1) => 70.0,
        (0, _, 1) => 98.0,
        (_, _, 0) => 130.0,
        _ => 125.0,
    }
}

#[test]
fn the_best_ways_of_several_parts_are_found_and_remembered() {
    let store = MemoryStore::new();
    let setup = setup(sum(together));
    let model = setup.build_with(&store).unwrap();
    assert_eq!(bound(&model), all(&choice(0, &[2, 1])));
    let count = tuning(&model).measured;
    assert!(!model.statistics().tuning.time.is_zero());
    assert!(count > 0 && tuning(&model).unmeasured + tuning(&model).refused == 0);
    let report = model.chosen_ways();
    assert_eq!(report.len(), count);
    for ways in &report {
        assert_eq!(ways.origin, WaysOrigin::Measured);
        let names: Vec<_> = ways.parts.iter().map(|part| part.way.as_str()).collect();
        assert_eq!(names, ["way 2", "way 1"]);
        assert_eq!(ways.parts[0].of, ["way 0", "way 1", "way 2"]);
        assert!(ways.chosen_us.unwrap() < ways.unmeasured_us.unwrap(), "{ways:?}");
    }
    let gains = model.gains();
    let is_kept = |gain: &Gain| gain.verdict == Verdict::Kept && gain.share() > gain.spread;
    assert!(gains.len() == count && gains.iter().all(is_kept), "{gains:?}");
    // What is expected to be fastest takes 100 a program, and what was found 70.
    assert!(gains.iter().all(|gain| gain.before_us > gain.after_us && gain.spread > 0.0));
    assert_eq!(gains[0].ways, "test.embed: way 2, test.embed's writes: way 1");
    // A later start measures nothing, whether it would or not.
    for tune in [TuneMode::Load, TuneMode::Measure] {
        let mut again = Setup { tune, ..setup.clone() }.build_with(&store).unwrap();
        assert_eq!(bound(&again), all(&choice(0, &[2, 1])));
        let loaded = TuningReport { loaded: count, ..TuningReport::default() };
        assert_eq!(tuning(&again), loaded);
        let origin = WaysOrigin::Remembered;
        let known = gains.iter().map(|gain| Gain { origin, ..gain.clone() });
        assert_eq!(again.gains(), Vec::from_iter(known));
        let ids = [4, 5, 6];
        let ticket = submit(&mut again, &ids).unwrap();
        assert_eq!(sampled(&mut again, &ticket), expected(&ids));
    }
    let off = Setup { tune: TuneMode::Off, ..setup.clone() }.build_with(&store).unwrap();
    assert_eq!((bound(&off), tuning(&off)), (all(&Choice::default()), TuningReport::default()));
    assert_eq!(off.gains(), []);
    let nothing = Setup { tune: TuneMode::default(), ..setup }.build().unwrap();
    assert_eq!(nothing.gains(), [], "a start measures nothing");
    let unmeasured = TuningReport { unmeasured: count, ..TuningReport::default() };
    assert_eq!((bound(&nothing), tuning(&nothing)), (all(&Choice::default()), unmeasured));
}

#[test]
fn another_alternative_wins_by_ways_that_only_it_has() {
    let cost = |program: &FakeProgram| match (&program.choice.alternative, program.choice.way(1)) {
        (0, _) => 100.0 + program.choice.way(0) as f64,
        // Its first ways lose.
        (_, 0) => 104.0,
        _ => 80.0,
    };
    let model = setup(sum(cost)).build().unwrap();
    assert_eq!(bound(&model), all(&choice(1, &[0, 1])));
}

/// Cheap numbers without order, from 0 to 1.
fn random(n: u64) -> f64 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24)
}

#[test]
fn a_win_within_the_noise_is_not_kept() {
    for (win, is_kept) in [(0.002, false), (0.2, true)] {
        let cost = move |programs: &[FakeProgram], n: u64| {
            let of = |p: &FakeProgram| if p.choice == choice(0, &[1]) { 1.0 - win } else { 1.0 };
            let step: f64 = programs.iter().map(of).sum();
            100.0 * step * (1.0 + 0.05 * random(n))
        };
        let (setup, store) = (setup(cost), MemoryStore::new());
        let model = setup.build_with(&store).unwrap();
        let kept = if is_kept { choice(0, &[1]) } else { Choice::default() };
        assert_eq!(bound(&model), all(&kept), "{win}");
        for gain in model.gains() {
            assert_eq!(gain.verdict == Verdict::Kept, is_kept, "{gain:?}");
            assert!(!is_kept || gain.share() > gain.spread, "{gain:?}");
        }
        // Neither does a later start have it.
        let later = Setup { tune: TuneMode::Load, ..setup }.build_with(&store).unwrap();
        assert_eq!(bound(&later), all(&kept), "{win}");
        // That nothing is faster is remembered, too.
        assert!(tuning(&model).measured > 0);
    }
}

/// Of each op alone the other way gains less than the noise.
#[test]
fn one_way_for_all_is_tried_where_each_alone_is_lost_in_the_noise() {
    let cost = |p: &FakeProgram| if p.choice == choice(0, &[1]) { 99.55 } else { 100.0 };
    let mut setup = setup(sum(cost));
    setup.planted.alternatives = vec![[2, 1]];
    one_step(&mut setup);
    let model = setup.build().unwrap();
    let report = model.chosen_ways();
    let measured = report.iter().filter(|ways| ways.origin == WaysOrigin::Measured);
    let taken: Vec<_> = measured.map(|ways| ways.parts[0].way.as_str()).collect();
    assert_eq!(taken, ["way 1"; 3]);
}

/// Each win was one when it was found; once there are several the device slows down.
#[test]
fn ways_that_are_slower_together_are_refused_by_the_check_of_the_whole_step() {
    let store = MemoryStore::new();
    let slow = Arc::new(AtomicU64::new(0));
    let is_slow = Arc::clone(&slow);
    let cost = move |programs: &[FakeProgram], _: u64| {
        let other = programs.iter().filter(|p| p.choice != Choice::default()).count();
        let is_step = programs.len() == 3;
        if is_step && other == 3 {
            // All three ops go another way: some replays later that is slow.
            is_slow.fetch_add(1, Ordering::Relaxed);
        }
        let late = is_step && other == 3 && is_slow.load(Ordering::Relaxed) > 22;
        100.0 * programs.len() as f64 - 10.0 * other as f64 + if late { 200.0 } else { 0.0 }
    };
    let mut setup = setup(cost);
    setup.planted.alternatives = vec![[2, 1]];
    one_step(&mut setup);
    let model = setup.build_with(&store).unwrap();
    assert!(slow.load(Ordering::Relaxed) > 22);
    assert_eq!(bound(&model), all(&Choice::default()));
    assert_eq!(tuning(&model).measured, 3);
    let seen_once = |gain: &Gain| gain.verdict == Verdict::NotSeenAgain;
    assert!(model.gains().iter().any(seen_once), "{:?}", model.gains());
    let again = setup.build_with(&store).unwrap();
    assert_eq!(bound(&again), all(&Choice::default()), "it is remembered");
    assert_eq!(tuning(&again).measured, 0);
}

#[test]
fn the_budget_stops_and_the_next_start_goes_on() {
    let store = MemoryStore::new();
    let setup = Setup { tune_budget: Duration::ZERO, ..setup(sum(together)) };
    let mut model = setup.build_with(&store).unwrap();
    let all_of_them = tuning(&model).unmeasured;
    assert!(all_of_them > 4 && tuning(&model).measured == 0);
    assert_eq!(bound(&model), all(&Choice::default()));
    let steps = full_steps(&Setup::roles_of(&model), model.dispatcher());
    let mut left = 24;
    let mut has_time = || {
        left -= 1;
        left >= 0
    };
    model.measure_choices(&steps, &store, &mut has_time, &mut |_| {}).unwrap();
    let TuningReport { measured, unmeasured, .. } = tuning(&model);
    assert_eq!(measured + unmeasured, all_of_them);
    assert!((1..all_of_them).contains(&measured));
    let next = setup.build_with(&store).unwrap();
    assert_eq!((tuning(&next).loaded, tuning(&next).unmeasured), (measured, unmeasured));
    let last = Setup { tune_budget: Duration::MAX, ..setup }.build_with(&store).unwrap();
    assert_eq!((tuning(&last).loaded, tuning(&last).measured), (measured, unmeasured));
    assert_eq!(bound(&last), all(&choice(0, &[2, 1])));
}

/// What a model has once time is up at any moment: nothing that was not tried to its end is remembered,
/// what is bound of it has passed the check of the whole step, and the next start goes on.
#[test]
fn an_artifact_that_was_not_tried_to_its_end_is_used_if_it_is_faster_and_not_remembered() {
    let is_used = |slow_in_the_end: bool| {
        let is_late = Arc::new(AtomicBool::new(false));
        let late = Arc::clone(&is_late);
        let cost = move |program: &FakeProgram| match program.choice == Choice::default() {
            false if slow_in_the_end && late.load(Ordering::Relaxed) => 200.0,
            _ => together(program),
        };
        let mut setup = Setup { tune_budget: Duration::ZERO, ..setup(sum(cost)) };
        one_step(&mut setup);
        let mut is_used = false;
        for most in 0.. {
            is_late.store(false, Ordering::Relaxed);
            let store = MemoryStore::new();
            let mut model = setup.build_with(&store).unwrap();
            let all_of_them = tuning(&model).unmeasured;
            let steps = full_steps(&Setup::roles_of(&model), model.dispatcher());
            let mut asked = 0;
            let mut has_time = || {
                asked += 1;
                is_late.store(asked > most, Ordering::Relaxed);
                asked <= most
            };
            model.measure_choices(&steps, &store, &mut has_time, &mut |_| {}).unwrap();
            let TuningReport { measured, unmeasured, .. } = tuning(&model);
            assert_eq!(measured + unmeasured, all_of_them);
            if unmeasured == 0 {
                break;
            }
            assert!(asked <= most + 2, "{asked} times after {most}");
            is_used |= measured == 0 && others(&model) > 0;
            let next = setup.build_with(&store).unwrap();
            assert_eq!((tuning(&next).loaded, tuning(&next).unmeasured), (measured, unmeasured));
            if slow_in_the_end {
                assert_eq!([others(&model), others(&next)], [0, 0], "after {most}");
            }
        }
        is_used
    };
    assert!(is_used(false) && !is_used(true));
}

#[test]
fn a_librarys_algorithms_are_chosen_with_its_way_and_its_version_is_of_the_record() {
    let store = MemoryStore::new();
    // Only with its third algorithm is the library ahead.
    let cost = |program: &FakeProgram| match (program.choice.way(0), program.algorithm) {
        (0, _) => 100.0,
        (1, algorithm) => 102.0 - 10.0 * algorithm.saturating_sub(1) as f64,
        _ => 150.0,
    };
    let mut setup = setup(sum(cost));
    setup.planted.alternatives = vec![[3, 1]];
    setup.planted.library = Some("library 1");
    let model = setup.build_with(&store).unwrap();
    assert_eq!(bound(&model), all(&choice(0, &[1])));
    assert!(model.fake().preferred.values().any(|algorithm| algorithm.0[0] == 2));
    assert!(model.chosen_ways().iter().all(|ways| ways.algorithms == 1));
    let again = setup.build_with(&store).unwrap();
    assert_eq!((bound(&again), tuning(&again).measured), (all(&choice(0, &[1])), 0));
    assert!(again.fake().preferred.values().all(|algorithm| algorithm.0[0] == 2));
    setup.planted.library = Some("library 2");
    setup.tune = TuneMode::Load;
    let other = setup.build_with(&store).unwrap();
    assert_eq!((bound(&other), tuning(&other).loaded), (all(&Choice::default()), 0));
    // Where no way is the library's, its version says nothing.
    let mut own = Setup { tune: TuneMode::Measure, ..setup };
    own.planted.library = None;
    let measured = tuning(&own.build_with(&store).unwrap()).measured;
    assert!(measured > 0);
    assert_eq!(tuning(&own.build_with(&store).unwrap()).loaded, measured);
}

#[test]
fn a_record_of_other_ways_is_ignored() {
    let store = MemoryStore::new();
    let setup = setup(sum(together));
    setup.build_with(&store).unwrap();
    let mut other = Setup { tune: TuneMode::Load, ..setup };
    other.planted.alternatives = vec![[3, 2]];
    let model = other.build_with(&store).unwrap();
    assert_eq!((bound(&model), tuning(&model).loaded), (all(&Choice::default()), 0));
}

/// What a start has of the pool may be another each time, since it follows from what the device has free.
#[test]
fn records_are_found_whatever_the_size_of_the_pool() {
    let store = MemoryStore::new();
    let mut setup = Setup { mode: GraphMode::FullAndPiecewise, ..setup(sum(together)) };
    let measured = tuning(&setup.build_with(&store).unwrap()).measured;
    let kept = store.entries();
    setup.bounds.kv_rows += 64;
    setup.bounds.entries += 1;
    let again = tuning(&setup.build_with(&store).unwrap());
    assert_eq!(again, TuningReport { loaded: measured, ..TuningReport::default() });
    assert!(measured > 0 && store.entries() == kept, "nothing is kept under another key");
    // The most sequences matter to what sees them alone.
    setup.bounds.sequences += 1;
    let mut unmeasured = setup.build_with(&store).unwrap().chosen_ways();
    unmeasured.retain(|ways| ways.origin != WaysOrigin::Remembered);
    assert!(!unmeasured.is_empty());
    assert!(unmeasured.iter().all(|ways| ways.parts[0].name == "test.mix"), "{unmeasured:?}");
}

#[test]
fn a_way_that_can_not_be_bound_or_captured_is_passed_over() {
    let is_best = |program: &FakeProgram| program.choice.way(0) == 2;
    let cost = |program: &FakeProgram| match program.choice.alternative {
        0 => 100.0 - 5.0 * program.choice.way(0) as f64 + program.choice.way(1) as f64,
        _ => 200.0,
    };
    for binds in [false, true] {
        let mut setup = setup(sum(cost));
        setup.planted.binds = Arc::new(move |program| binds || !is_best(program));
        setup.planted.captures = Arc::new(move |program| !binds || !is_best(program));
        let model = setup.build().unwrap();
        assert_eq!(bound(&model), all(&choice(0, &[1])), "binds: {binds}");
    }
}

const IN_PIECES: [GraphMode; 2] = [GraphMode::Piecewise, GraphMode::FullAndPiecewise];

/// How members are bound in a step that runs at these sizes.
fn bound_at(model: &Model, sizes: &StepSizes) -> Vec<Choice> {
    model.members.list.iter().map(|member| fake(member.program(sizes)).choice.clone()).collect()
}

/// What runs in pieces is measured in the whole step where the ops between pieces can be captured at its
/// size, and else by its pieces, and what lies between them stays. Either way it replays its pieces alone.
#[test]
fn a_step_in_pieces_is_measured_whole_where_its_ops_can_be_captured() {
    use CaptureSupport::{Always, Never, SingleTokenDecode};
    let best = choice(0, &[2, 1]);
    for mode in IN_PIECES {
        for split_support in [Always, SingleTokenDecode, Never] {
            let setup = Setup { mode, split_support, ..setup(sum(together)) };
            let model = setup.build().unwrap();
            let steps = model.dispatcher().measured_steps();
            assert!(steps.iter().any(|(_, mode)| *mode == StepMode::Piecewise));
            for (sizes, _) in steps {
                let is_decode = sizes.query_length.is_some();
                let is_measured = split_support == Always || split_support != Never && is_decode;
                let between = if is_measured { best.clone() } else { Choice::default() };
                let expected = [best.clone(), between, best.clone()];
                assert_eq!(bound_at(&model, &sizes), expected, "{mode:?} {sizes:?}");
            }
            let measured = model.stats.tuning;
            assert_eq!((measured.unmeasured, measured.refused), (0, 0), "{mode:?}");
            let off = Setup { tune: TuneMode::Off, ..setup }.build().unwrap();
            assert_eq!(model.graphs.keys(), off.graphs.keys());
            assert_eq!(model.ready_graphs().count(), off.ready_graphs().count());
        }
    }
}

/// It is captured for that alone.
#[test]
fn a_step_that_is_launched_runs_by_the_ways_that_were_measured() {
    for (mode, launched) in
        [(GraphMode::None, vec![]), (GraphMode::FullDecodeOnly, vec![]), (GraphMode::Full, vec![4])]
    {
        let mut setup = Setup { mode, ..setup(sum(together)) };
        setup.rules.launched = launched;
        let mut model = setup.build().unwrap();
        assert_eq!((bound(&model), tuning(&model).unmeasured), (all(&choice(0, &[2, 1])), 0));
        let off = Setup { tune: TuneMode::Off, ..setup }.build().unwrap();
        assert_eq!(model.ready_graphs().count(), off.ready_graphs().count());
        let ids = [4, 5, 6];
        let ticket = submit(&mut model, &ids).unwrap();
        assert_eq!(sampled(&mut model, &ticket), expected(&ids));
        assert_eq!(model.last_step().unwrap().mode, StepMode::None, "{mode:?}");
    }
}

/// Of the split op alone the second way is faster.
#[test]
fn a_faster_implementation_of_a_split_op_is_launched_between_pieces() {
    piecewise_testing::host_time::hold();
    let is_other = |program: &FakeProgram| program.op == "test.mix" && program.choice.way(0) == 1;
    let cost = move |program: &FakeProgram| if is_other(program) { 60.0 } else { 100.0 };
    for mode in IN_PIECES {
        let store = MemoryStore::new();
        let mut setup = Setup { mode, ..setup(sum(cost)) };
        (setup.token_sizes, setup.batch_sizes) = (vec![4], vec![4]);
        // Pieces that replay are not to lose to launches of all.
        setup.faults.slow_launches.store(true, Ordering::Relaxed);
        for is_first in [true, false] {
            let mut model = setup.build_with(&store).unwrap();
            assert_eq!(tuning(&model).measured > 0, is_first);
            let ids = [4, 5, 6];
            let ticket = submit(&mut model, &ids).unwrap();
            assert_eq!(sampled(&mut model, &ticket), expected(&ids));
            let step = model.last_step().unwrap();
            assert_eq!(step.mode, StepMode::Piecewise);
            let first = Choice::default();
            let expected = [first.clone(), choice(0, &[1]), first];
            assert_eq!(bound_at(&model, &step.sizes), expected, "{mode:?}");
        }
    }
}

#[test]
fn a_recovered_device_runs_the_same_ways() {
    let mut model = setup(sum(together)).build().unwrap();
    let (before, measured) = (bound(&model), tuning(&model));
    model.recover().unwrap();
    assert_eq!((bound(&model), tuning(&model)), (before, measured));
    let ticket = submit(&mut model, &[7, 8]).unwrap();
    assert_eq!(sampled(&mut model, &ticket), expected(&[7, 8]));
}

#[test]
fn measuring_leaves_nothing_in_the_states() {
    let mut model = setup(sum(together)).build().unwrap();
    let region = model.memory().states;
    let mut bytes = vec![1; region.bytes as usize];
    model.device_mut().read(region.base, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(model.build_times().measure > Duration::ZERO);
}
