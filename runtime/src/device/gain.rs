//! What was gained by measuring, beside what the same step differs by from itself.

use super::choices::{Choices, Chosen};
use super::record::{LaunchedRecord, Record, TrialRecord, WaysOrigin};
use crate::store::CompiledPieces;
use piecewise_backend::artifact::{Artifact, Choice};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Stitch;
use serde::Serialize;

/// What was measured of one thing to choose.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// What is chosen for: a unique piece as plans name it, or the steps that replay in pieces.
    pub choice: String,
    /// The size that it was measured at, as capture sizes are written.
    pub size: String,
    /// What is taken, or else the best of what was tried: ways by the parts that have others than the
    /// first. Those that were faster together alone are named with what they gain together.
    pub ways: String,
    /// Measured now, or remembered from before.
    pub origin: WaysOrigin,
    /// Microseconds of the step with what is expected to be fastest, or with the best so far of what
    /// was tried in vain.
    pub before_us: f64,
    /// The same with these ways.
    pub after_us: f64,
    /// The share of the step by which two replays of the same graph differ: no gain below it means
    /// anything.
    pub spread: f64,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of something that was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, derive_more::Display)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It gains more than the spread: it is taken and remembered.
    #[display("remembered")]
    Kept,
    /// Nothing that was tried gains more than the spread.
    #[display("within the spread")]
    WithinSpread,
    /// It gained more when it was tried, and the step with all that was found does not.
    #[display("not seen again")]
    NotSeenAgain,
}

impl Gain {
    /// The share of the step that is saved; negative where it takes longer.
    pub fn share(&self) -> f64 {
        if self.before_us > 0.0 { 1.0 - self.after_us / self.before_us } else { 0.0 }
    }

    fn of_ways(piece: String, artifact: &Artifact, chosen: &Chosen) -> Option<Self> {
        let record = chosen.record.as_ref()?;
        let is_kept = record.gained > 0.0;
        let ratio = |t: &&TrialRecord| t.step_us / t.best_us.max(f64::MIN_POSITIVE);
        let best = record.trials.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let Record { unmeasured_us, gained, spread, .. } = *record;
        let (choice, before_us, after_us) = match best.filter(|_| !is_kept) {
            Some(trial) => (&trial.choice, trial.best_us, trial.step_us),
            None => (&record.choice, unmeasured_us, unmeasured_us * (1.0 - gained)),
        };
        let gain = Self {
            choice: piece,
            size: artifact.size.to_string(),
            ways: ways_named(artifact, choice),
            origin: chosen.origin,
            before_us,
            after_us,
            spread,
            verdict: Verdict::Kept,
        };
        let verdict = match is_kept {
            true => Verdict::Kept,
            false if gain.share() > spread => Verdict::NotSeenAgain,
            false => Verdict::WithinSpread,
        };
        Some(Self { verdict, ..gain })
    }

    fn of_launches(size: String, origin: WaysOrigin, record: &LaunchedRecord) -> Self {
        Self {
            choice: "step in pieces".to_owned(),
            size,
            ways: "launched".to_owned(),
            origin,
            before_us: record.replayed_us,
            after_us: record.launched_us,
            spread: record.spread,
            verdict: if record.is_launched { Verdict::Kept } else { Verdict::WithinSpread },
        }
    }
}

/// The ways that are not the first, by their parts.
fn ways_named(artifact: &Artifact, choice: &Choice) -> String {
    let parts = artifact.alternatives.get(choice.alternative).map_or(&[][..], |one| &one.parts);
    let others = parts.iter().enumerate().filter_map(|(i, part)| {
        let way = part.ways.get(choice.way(i)).filter(|_| choice.way(i) > 0)?;
        let launch = part.ways.first().and_then(|way| way.launches.first());
        Some(format!("{}: {}", launch.map_or("", |launch| &launch.name), way.name))
    });
    let divided = (choice.alternative > 0).then(|| format!("division {}", choice.alternative));
    let named = Vec::from_iter(divided.into_iter().chain(others));
    if named.is_empty() { "the first".to_owned() } else { named.join(", ") }
}

impl Choices {
    /// What was measured of each choice: of unique pieces at their sizes, then of the steps that replay
    /// in pieces.
    pub(crate) fn gains(&self, stitch: &Stitch, compiled: &CompiledPieces) -> Vec<Gain> {
        let Self { by_unique, launched, .. } = self;
        let of_ways = stitch.unique.keys().zip(by_unique).flat_map(|(unique, chosen)| {
            let artifacts = &compiled.artifacts[unique.index()];
            let pairs = artifacts.iter().zip(chosen);
            pairs.filter_map(move |(artifact, chosen)| {
                Gain::of_ways(unique.to_string(), artifact, chosen)
            })
        });
        let of_launches = launched.iter().map(|(sizes, (origin, record))| {
            Gain::of_launches(sizes.whole().to_string(), *origin, record)
        });
        of_ways.chain(of_launches).collect()
    }
}
