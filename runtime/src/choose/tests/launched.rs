//! Which sizes run launched since that was faster than their pieces replayed.

use crate::device::{Verdict, WaysOrigin};
use crate::steps::tests::{Model, expected, sampled, submit};
use crate::store::compile_jobs;

use crate::testing::Setup;
use crate::words::CaptureWhen;
use crate::words::FallbackReason;
use crate::words::SymbolTable;
use crate::words::{GraphMode, StepMode};
use piecewise_backend::artifact::{Digest, PieceSize};
use piecewise_backend::store::{MemoryEntry, MemoryStore};
use piecewise_backend::tuning::TuneMode;
use piecewise_testing::host_time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

type Entries = BTreeMap<(&'static str, Digest), MemoryEntry>;

const LAUNCHED: (StepMode, Option<FallbackReason>) =
    (StepMode::None, Some(FallbackReason::LaunchesFaster));
const REPLAYED: (StepMode, Option<FallbackReason>) = (StepMode::Piecewise, None);

/// How a step of three tokens runs.
fn way(model: &mut Model) -> (StepMode, Option<FallbackReason>) {
    let ids = [4, 5, 6];
    let ticket = submit(model, &ids).unwrap();
    assert_eq!(sampled(model, &ticket), expected(&ids));
    let report = model.last_step().unwrap();
    assert_eq!(report.sizes.tokens, PieceSize::Exact(4), "at the padded size");
    (report.mode, report.fallback)
}

fn slow(setup: &Setup, replays: bool, launches: bool) {
    setup.faults.slow_replays.store(replays, Ordering::Relaxed);
    setup.faults.slow_launches.store(launches, Ordering::Relaxed);
}

/// Steps of four tokens alone, whose pieces replay.
fn four_tokens() -> Setup {
    let (mode, tune) = (GraphMode::Piecewise, TuneMode::Measure);
    let token_sizes = vec![4];
    Setup { mode, tune, token_sizes, query_lengths: Vec::new(), ..Setup::default() }
}

/// A size whose graphs are slow is launched at that size where it is measured, in any mode that would
/// have its pieces replay.
#[test]
fn sizes_that_are_faster_launched_than_in_pieces_are_launched() {
    host_time::hold();
    for mode in [GraphMode::Piecewise, GraphMode::FullAndPiecewise] {
        let setup = Setup { mode, tune: TuneMode::Measure, ..Setup::default() };
        slow(&setup, true, false);
        let mut model = setup.build().unwrap();
        slow(&setup, false, false);
        assert_eq!(model.statistics().steps, 0, "what is measured counts as no step");
        for other in [mode, GraphMode::Piecewise] {
            model.set_graph_mode(other, &mut |_| {}).unwrap();
            assert_eq!(way(&mut model), LAUNCHED);
        }
        assert_eq!(model.statistics().misses["launches_faster"], 2);
        slow(&setup, false, true);
        assert_eq!(way(&mut setup.build().unwrap()), REPLAYED);
        slow(&setup, true, false);
        let unmeasured = Setup { tune: TuneMode::Off, ..setup.clone() };
        assert_eq!(way(&mut unmeasured.build().unwrap()), REPLAYED);
    }
}

/// Measuring ways takes all the time that it is left, of which the comparison has a share of its own.
#[test]
fn a_budget_that_ways_use_up_still_compares_launches() {
    host_time::hold();
    let mut setup = four_tokens();
    setup.planted.alternatives = vec![[3, 2], [1, 2], [40, 40]];
    setup.planted.cost = Arc::new(|programs, _| {
        host_time::pass(Duration::from_millis(20));
        programs.len() as f64
    });
    setup.tune_budget = Duration::from_secs(1);
    slow(&setup, true, false);
    let store = MemoryStore::new();
    let mut model = setup.build_with(&store).unwrap();
    assert!(model.build_times().measure >= Duration::from_millis(800));
    assert!(model.statistics().tuning.unmeasured > 0, "the ways took all their time");
    assert_eq!(way(&mut model), LAUNCHED);
    // Of no time nothing is compared.
    setup.tune_budget = Duration::ZERO;
    assert_eq!(way(&mut setup.build().unwrap()), REPLAYED);
}

/// What came of a comparison is remembered, also that replays are faster, and measured no more; what the
/// records of ways depend on, it depends on.
#[test]
fn what_is_launched_is_remembered() {
    host_time::hold();
    for (slow_replays, expected) in [(true, LAUNCHED), (false, REPLAYED)] {
        let store = MemoryStore::new();
        let mut setup = four_tokens();
        setup.planted.alternatives = vec![[2, 1]];
        setup.planted.library = Some("library 1");
        slow(&setup, slow_replays, !slow_replays);
        assert_eq!(way(&mut setup.build_with(&store).unwrap()), expected);
        // Measured now, it would come out otherwise.
        slow(&setup, !slow_replays, slow_replays);
        for tune in [TuneMode::Load, TuneMode::Measure] {
            for capture in [CaptureWhen::Startup, CaptureWhen::Lazy] {
                let again = Setup { tune, capture, ..setup.clone() };
                let what = format!("{tune:?} {capture:?}");
                assert_eq!(way(&mut again.build_with(&store).unwrap()), expected, "{what}");
            }
        }
        let mut again = setup.build_with(&store).unwrap();
        let gains = again.gains();
        let gain = gains.iter().find(|gain| gain.choice == "step in pieces").unwrap();
        let is_launched = gain.share() > gain.spread;
        assert_eq!((is_launched, gain.size.as_str()), (slow_replays, "4"), "{gain:?}");
        let verdict = if is_launched { Verdict::Kept } else { Verdict::WithinSpread };
        assert_eq!((gain.verdict, gain.origin), (verdict, WaysOrigin::Remembered));
        assert_eq!(again.build_times().measure.as_millis() / 100, 0);
        again.set_graph_mode(GraphMode::None, &mut |_| {}).unwrap();
        again.set_graph_mode(GraphMode::Piecewise, &mut |_| {}).unwrap();
        assert_eq!(way(&mut again), expected);
        let off = Setup { tune: TuneMode::Off, ..setup.clone() };
        assert_eq!(way(&mut off.build_with(&store).unwrap()), REPLAYED);
        let load = Setup { tune: TuneMode::Load, ..setup.clone() };
        for other in 0..4 {
            let mut other_setup = load.clone();
            match other {
                0 => other_setup.planted.library = Some("library 2"),
                1 => other_setup.planted.alternatives = vec![[3, 1]],
                2 => other_setup.bounds.sequences = 3,
                _ => other_setup.planted.library = None,
            }
            let mut other_model = other_setup.build_with(&store).unwrap();
            assert_eq!(way(&mut other_model), REPLAYED, "{other}: nothing is known of it");
        }
        // A start that would measure does so where nothing is known of what it has.
        setup.planted.library = Some("library 2");
        let otherwise = if slow_replays { REPLAYED } else { LAUNCHED };
        assert_eq!(way(&mut setup.build_with(&store).unwrap()), otherwise);
    }
}

/// Pieces are compiled without the library, so that with a newer one they are found, and measured anew.
#[test]
fn the_librarys_version_is_of_the_keys_of_what_was_measured_and_of_no_pieces() {
    host_time::hold();
    let mut setup = four_tokens();
    setup.planted.alternatives = vec![[2, 1]];
    let mut of = |version| {
        let store = MemoryStore::new();
        setup.planted.library = Some(version);
        let model = setup.build_with(&store).unwrap();
        let symbols = SymbolTable::new(model.module().graph().symbols()).unwrap();
        let (stitch, compiler) = (model.module().stitch().unwrap(), setup.compiler());
        let jobs = compile_jobs(stitch, &symbols, &setup.dispatcher(), &compiler);
        let pieces = Vec::from_iter(jobs.iter().map(|job| job.key(&compiler).unwrap().digest()));
        (store.entries(), pieces)
    };
    let ((one, pieces), (other, same_pieces)) = (of("library 1"), of("library 2"));
    assert_eq!((pieces.len() > 2, &pieces), (true, &same_pieces));
    let kinds = |of: &Entries| BTreeSet::from_iter(of.keys().map(|(kind, _)| *kind));
    assert_eq!(kinds(&one), BTreeSet::from(["launched", "tuning"]));
    assert!(one.keys().all(|key| !other.contains_key(key)), "{one:?}");
    // Nothing else tells the two apart.
    let without = |of: Entries, version: &str| {
        let version = ("library".to_owned(), version.to_owned());
        let rest = of.into_iter().map(|((kind, _), mut entry)| {
            assert!(entry.factors.contains(&version), "{kind}: {:?}", entry.factors);
            entry.factors.retain(|factor| *factor != version);
            (kind, entry.factors)
        });
        BTreeSet::from_iter(rest)
    };
    assert_eq!(without(one, "library 1"), without(other, "library 2"));
}

/// Of the mode that a model starts in and of those that it is given later.
#[test]
fn what_is_launched_is_known_in_modes_that_come_later() {
    host_time::hold();
    let store = MemoryStore::new();
    let setup = four_tokens();
    slow(&setup, true, false);
    setup.build_with(&store).unwrap();
    let (mode, tune) = (GraphMode::Full, TuneMode::Load);
    let mut full = Setup { mode, tune, ..setup.clone() }.build_with(&store).unwrap();
    assert_eq!(way(&mut full), (StepMode::Full, None));
    full.set_graph_mode(GraphMode::Piecewise, &mut |_| {}).unwrap();
    assert_eq!(way(&mut full), LAUNCHED);
}
