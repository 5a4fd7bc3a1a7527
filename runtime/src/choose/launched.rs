//! Which sizes that run in pieces are launched instead: replays and launches of a step, compared in rounds
//! that take turns, and remembered.

use super::rounds::{noise_of, of_pairs, pair};
use crate::batch::SyntheticStep;
use crate::device::{BindSite, LaunchedRecord, Place, RecordKey, WaysOrigin, ways_of};
use crate::steps::{CompiledModel, MeasuredStep, Run, Staged};
use crate::words::{ModelError, StepMode, StepSizes};
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::NoStore;
use piecewise_backend::store::Store;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::entity::Entity;
use std::time::Duration;

/// Rounds that decide: more of them where a step takes up to so long.
const ROUNDS: [(Duration, usize); 3] =
    [(Duration::from_millis(2), 15), (Duration::from_millis(8), 9), (Duration::from_millis(30), 5)];
/// The fewest rounds that decide, where steps are longer or the time is up.
const LEAST_ROUNDS: usize = 3;
/// So much of the same step is submitted before it is waited for, as far as [`AHEAD`] steps go: what the
/// host takes shows only where it does not wait after each.
const SUBMITTED: Duration = Duration::from_millis(10);
const AHEAD: u128 = 4;
/// The least share of a step by which launches must be faster than a replay in pieces to be taken:
/// medians of the same differ by less.
const MARGIN: f64 = 0.005;
/// The share of the time for measuring that is kept for this comparison, and the most of it.
const SHARE: u32 = 5;
const MOST: Duration = Duration::from_secs(2);

/// Replays and launches of a step, compared.
struct Compared {
    times: [f64; 2],
    spread: f64,
    is_launched: bool,
}

impl Compared {
    fn of(pairs: &[[f64; 2]]) -> Self {
        let (times, spread) = (of_pairs(pairs), noise_of(pairs).max(MARGIN));
        Self { times, spread, is_launched: times[1] < times[0] * (1.0 - spread) }
    }

    fn ratio(&self) -> f64 {
        self.times[1] / self.times[0].max(f64::MIN_POSITIVE)
    }
}

impl CompiledModel {
    /// How ways were to be chosen where nothing else is known.
    pub fn tune(&self) -> TuneMode {
        self.tune
    }

    /// How much of the time for measuring is kept for comparing launches with replays in pieces, whatever
    /// the ways of parts take: all of a time without end.
    pub fn launches_budget(&self) -> Duration {
        match self.tune_budget {
            Duration::MAX => Duration::MAX,
            budget => (budget / SHARE).min(MOST),
        }
    }

    /// What is left for the comparison after ways were measured for so long, of which `kept` is kept.
    pub(crate) fn left_for_launches(&self, measured: Duration, kept: Duration) -> Duration {
        self.tune_budget.saturating_sub(measured).min(MOST).max(kept)
    }

    /// Times steps that fill the sizes which run in pieces that are captured, replayed and launched in
    /// turn, within `budget`: a size that is faster launched is launched from now on, and one that no
    /// longer is, is replayed; one that the time does not reach stays as it is. What is remembered of them
    /// does not count, and nothing is. This overwrites what the states hold.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn measure_launches(
        &mut self,
        steps: &[SyntheticStep],
        budget: Duration,
    ) -> Result<(), ModelError> {
        let sizes = self.sizes_in_pieces();
        self.compare_launches(&sizes, steps, &NoStore, budget)
    }

    /// Takes for every size in pieces, also of other modes, what the store remembers; the sizes of this
    /// mode that it remembers nothing of.
    pub(crate) fn load_launched(&mut self, store: &dyn Store) -> Vec<StepSizes> {
        let mut in_pieces = self.dispatcher.clone();
        in_pieces.mode = crate::words::GraphMode::Piecewise;
        let mut open = self.sizes_in_pieces();
        for (sizes, _) in in_pieces.measured_steps() {
            let step = MeasuredStep::new(self, sizes, true);
            let Some((key, ways)) = self.key_of(&step) else { continue };
            let record = key.get::<LaunchedRecord>(store);
            if let Some(record) = record.filter(|record| record.ways == ways) {
                self.ways.set_launched(sizes.whole(), record.is_launched);
                let known = (WaysOrigin::Remembered, record);
                self.origin.choices.launched.insert(sizes, known);
                open.retain(|other| *other != sizes);
            }
        }
        open
    }

    /// Whether some size in pieces is to be compared at this start: one of `open`, of which nothing is
    /// remembered, or one with ways that nobody has measured.
    pub(crate) fn will_compare_launches(&self, open: &[StepSizes]) -> bool {
        let mut sizes = self.sizes_in_pieces().into_iter();
        !open.is_empty()
            || sizes.any(|sizes| !self.unmeasured_in(&self.measured_step(sizes)).is_empty())
    }

    /// Compares the sizes that nothing is remembered of, and then those of which this start has measured
    /// the ways, within `budget`, and keeps what comes of it.
    pub(crate) fn choose_launched(
        &mut self,
        open: &[StepSizes],
        steps: &[SyntheticStep],
        store: &dyn Store,
        budget: Duration,
    ) -> Result<(), ModelError> {
        let mut sizes = open.to_vec();
        let again = self.sizes_in_pieces().into_iter();
        sizes.extend(again.filter(|sizes| !open.contains(sizes) && self.was_measured(*sizes)));
        let clock = self.device.clock();
        let started = clock();
        self.compare_launches(&sizes, steps, store, budget)?;
        self.origin.choices.report.time += clock().saturating_duration_since(started);
        self.stats.tuning = self.origin.choices.report;
        Ok(())
    }

    fn sizes_in_pieces(&self) -> Vec<StepSizes> {
        let steps = self.dispatcher.measured_steps().into_iter();
        let in_pieces = steps.filter(|(_, mode)| *mode == StepMode::Piecewise);
        in_pieces.map(|(sizes, _)| sizes).collect()
    }

    /// Whether ways of a step in pieces were measured at this start.
    fn was_measured(&self, sizes: StepSizes) -> bool {
        let Some(stitch) = self.module.stitch() else { return false };
        let mut places = self.measured_step(sizes).places(self, stitch).into_keys();
        let by_unique = &self.origin.choices.by_unique;
        places.any(|(unique, i)| by_unique[unique.index()][i].origin == WaysOrigin::Measured)
    }

    fn compare_launches(
        &mut self,
        all: &[StepSizes],
        steps: &[SyntheticStep],
        store: &dyn Store,
        budget: Duration,
    ) -> Result<(), ModelError> {
        let clock = self.device.clock();
        let since = |start| clock().saturating_duration_since(start);
        let started = clock();
        let stats = self.stats.clone();
        for &sizes in all {
            let Some(found) = steps.iter().find(|step| step.sizes == sizes) else { continue };
            if !self.graphs.has_pieces(sizes) {
                continue;
            }
            if since(started) >= budget {
                break;
            }
            let step = MeasuredStep::new(self, sizes, true);
            if !self.stage_measured(&step, std::slice::from_ref(found))? {
                continue;
            }
            let counts = found.step.with(|data| data.counts.to_vec());
            let ways = [StepMode::Piecewise, StepMode::None].map(|mode| Staged {
                run: Run { mode, sizes, head_again: false },
                counts: counts.clone(),
                sizes: step.by_symbol.clone(),
            });
            let mut has_time = || since(started) < budget;
            let Some(first) = self.compare_ways(&ways, &mut has_time)? else { break };
            let mut compared = Compared::of(&first);
            // A win is one if it is seen again.
            if compared.is_launched
                && let Some(again) = self.compare_ways(&ways, &mut has_time)?
            {
                let again = Compared::of(&again);
                if !again.is_launched || again.ratio() > compared.ratio() {
                    compared = again;
                }
            }
            let Compared { times: [replayed_us, launched_us], spread, is_launched } = compared;
            self.ways.set_launched(sizes.whole(), is_launched);
            tracing::debug!(step = step.label, replayed_us, launched_us, "pieces and launches");
            if let Some((key, ways)) = self.key_of(&step) {
                let step = step.label.clone();
                let record =
                    LaunchedRecord { ways, is_launched, step, replayed_us, launched_us, spread };
                if !key.keep(store, &record) {
                    tracing::debug!(step = record.step, "the store did not take what is launched");
                }
                let known = (WaysOrigin::Measured, record);
                self.origin.choices.launched.insert(sizes, known);
            }
        }
        self.stats = stats;
        Ok(())
    }

    /// The microseconds of a step both ways, by round; nothing where the time is up before that means something.
    fn compare_ways(
        &mut self,
        ways: &[Staged; 2],
        has_time: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<[f64; 2]>>, ModelError> {
        let mut step = Duration::MAX;
        // The first runs may load code.
        for way in ways.iter().chain(ways) {
            step = step.min(self.time_of(way, 1)?);
        }
        let rounds = ROUNDS.into_iter().find(|(most, _)| step <= *most);
        let rounds = rounds.map_or(LEAST_ROUNDS, |(_, rounds)| rounds);
        let ahead = (SUBMITTED.as_nanos() / step.as_nanos().max(1)).clamp(1, AHEAD) as usize;
        let mut pairs = Vec::with_capacity(rounds);
        for round in 0..rounds {
            if round > 0 && !has_time() {
                break;
            }
            pairs.push(pair(round, |i| {
                let time = self.time_of(&ways[i], ahead);
                time.map(|time| time.as_secs_f64() * 1e6 / ahead as f64)
            })?);
        }
        Ok((pairs.len() >= LEAST_ROUNDS).then_some(pairs))
    }

    /// What is kept of a step is kept under, and the ways that it must have been measured with.
    fn key_of(&self, step: &MeasuredStep) -> Option<(RecordKey, Vec<Digest>)> {
        let Self { module, symbols, memory, origin, .. } = self;
        let stitch = module.stitch()?;
        let site = BindSite { module, stitch, symbols, memory, compiled: &origin.compiled };
        let places = step.places(self, stitch);
        let mut members: Vec<(usize, Place)> =
            places.iter().flat_map(|(place, uses)| uses.iter().map(|i| (*i, *place))).collect();
        members.sort_unstable();
        let members = members.into_iter();
        let members = members.map(|(i, place)| (place, self.members.list[i].is_captured_piece()));
        let members: Vec<_> = members.collect();
        let key = RecordKey::of_step(&*self.device, &site, &step.sizes, &members);
        let ways = places.keys().map(|&(unique, i)| {
            let record = &origin.choices.by_unique[unique.index()][i].record;
            record.as_ref().map_or_else(|| ways_of(site.artifact((unique, i))), |r| r.ways)
        });
        Some((key, ways.collect()))
    }
}
