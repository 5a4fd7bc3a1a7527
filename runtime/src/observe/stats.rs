//! What a model counts while it runs.

use super::exposition::{Labels, distribution};
use crate::words::{CompileCounts, Dispatch, StepMode};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::tuning::TuningReport;
use prometheus::proto::Metric;
use serde::Serializer;
use std::collections::BTreeMap;
use std::time::Duration;

/// How a step ran, and at which size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, derive_more::Display)]
#[display("{} {}", mode.name(), self.size_name())]
pub struct ModeAndSize {
    /// Launched, in pieces or as one graph.
    pub mode: StepMode,
    /// The size of the whole step; `None` where it ran at its own counts.
    pub size: Option<PieceSize>,
}

impl ModeAndSize {
    /// The size as it is shown: `8`, `4x1`, or `any`.
    pub fn size_name(&self) -> String {
        self.size.map_or_else(|| "any".to_owned(), |size| size.to_string())
    }
}

/// Counts since the model was built.
///
/// A step is a hit where it replayed, and a miss where it was launched: `hits() + misses()` is
/// `steps`.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Statistics {
    /// Steps that ran, replayed or launched.
    pub steps: u64,
    /// Steps by how they ran: launched, piecewise, full.
    pub steps_by_mode: [u64; 3],
    /// Steps by how they ran and at which size.
    #[serde(serialize_with = "by_name")]
    pub steps_by_kind: BTreeMap<ModeAndSize, u64>,
    /// Steps that were launched, by reason. [`Self::LAUNCHED_BY_MODE`] are those that the graph
    /// mode launches; the others would have replayed.
    pub misses: BTreeMap<&'static str, u64>,
    /// Replays of pieces by size.
    #[serde(serialize_with = "by_name")]
    pub piece_replays: BTreeMap<PieceSize, u64>,
    /// Replays of whole steps: by sequences and query length where they are uniform batches, by
    /// tokens where not.
    #[serde(serialize_with = "by_name")]
    pub full_replays: BTreeMap<PieceSize, u64>,
    /// Tokens that steps brought, padding not included.
    pub real_tokens: u64,
    /// Tokens that steps ran, padding included.
    pub padded_tokens: u64,
    /// Time from entering a submit to leaving it.
    pub submit_time: Duration,
    /// By the device's clock from the first copy of a step's inputs to the last of its outputs, by
    /// how it ran; of the steps that were timed and read.
    pub gpu_time: [Histogram; 3],
    /// From entering the submit of a step, or the end of the step before where that came later, to
    /// the arrival of its outputs, by how it ran; of the steps that were read.
    pub wall_time: [Histogram; 3],
    /// Graphs that were captured, for the first time or again.
    pub captures: u64,
    /// Graphs captured that replaced one that was there before; they count as captured too.
    pub recaptures: u64,
    /// How often memory of the model had moved, so that its programs were bound anew.
    pub address_changes: u64,
    /// How often it had moved beyond `recapture_limit`, so that graphs were not captured again.
    pub recapture_limit_hits: u64,
    /// Attempts to capture a graph that failed, those that a later one made up for among them.
    pub capture_failures: u64,
    /// Replays that were refused when they were submitted; what they hold was launched.
    pub refused_replays: u64,
    /// Steps that replayed pieces since it was measured that the whole step, padded, takes longer.
    pub pieces_for_padding: u64,
    /// How often the device was lost and opened anew.
    pub recoveries: u64,
    /// Time that captures took, failed ones too.
    pub capture_time: Duration,
    /// How many tokens steps had.
    pub step_tokens: StepTokens,
    /// What was chosen by measurement when the model was built, and what was remembered.
    pub tuning: TuningReport,
    /// What was compiled when the model was built, and what came from the cache.
    pub compile: CompileCounts,
}

/// How many steps had at most as many tokens as each bound, and more than the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
#[serde(transparent)]
pub struct StepTokens([u64; 15]);

impl StepTokens {
    /// Tokens up to which steps are counted together; more than all of them have a count of their own.
    pub const BOUNDS: [u64; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

    fn add(&mut self, tokens: u64) {
        self.0[Self::BOUNDS.partition_point(|&bound| bound < tokens)] += 1;
    }

    /// The same for Prometheus; the steps have `sum` tokens together.
    pub(super) fn metric(&self, labels: Labels, sum: u64) -> Metric {
        let bounds = Self::BOUNDS.iter().map(|&bound| bound as f64);
        distribution(labels, bounds, &self.0, sum as f64)
    }
}

impl Statistics {
    /// The reason of steps that the graph mode launches.
    pub const LAUNCHED_BY_MODE: &'static str = "graph_mode";

    /// The share of tokens run that were padding.
    pub fn padding_share(&self) -> f64 {
        share(self.padded_tokens - self.real_tokens, self.padded_tokens)
    }

    /// Steps that replayed, piecewise or full.
    pub fn hits(&self) -> u64 {
        self.steps_by_mode[StepMode::Piecewise as usize]
            + self.steps_by_mode[StepMode::Full as usize]
    }

    /// Steps that were launched, whatever the reason.
    pub fn misses(&self) -> u64 {
        self.misses.values().sum()
    }

    /// Counts the replay of a whole step.
    pub(crate) fn count_whole(&mut self, size: PieceSize) {
        *self.full_replays.entry(size).or_default() += 1;
    }

    /// Counts the replay of pieces of these sizes.
    pub(crate) fn count_pieces(&mut self, sizes: impl Iterator<Item = PieceSize>) {
        // Nearly always all have one size, and there are as many as layers.
        let mut same = None;
        for size in sizes {
            match &mut same {
                Some((known, count)) if *known == size => *count += 1,
                _ => {
                    let before = same.replace((size, 1));
                    before.into_iter().for_each(|counted| self.add_pieces(counted));
                }
            }
        }
        same.into_iter().for_each(|counted| self.add_pieces(counted));
    }

    fn add_pieces(&mut self, (size, count): (PieceSize, u64)) {
        *self.piece_replays.entry(size).or_default() += count;
    }

    /// The share of steps that replayed.
    pub fn hit_share(&self) -> f64 {
        share(self.hits(), self.steps)
    }

    pub(crate) fn count_step(&mut self, step: &Dispatch, real: u64, time: Duration) {
        let Dispatch { mode, sizes, fallback } = step;
        self.steps += 1;
        self.steps_by_mode[*mode as usize] += 1;
        let is_captured = |size: &PieceSize| !matches!(size, PieceSize::General(_));
        let size = Some(sizes.whole()).filter(is_captured);
        *self.steps_by_kind.entry(ModeAndSize { mode: *mode, size }).or_default() += 1;
        if *mode == StepMode::None {
            let reason = fallback.map_or(Self::LAUNCHED_BY_MODE, |reason| reason.name());
            *self.misses.entry(reason).or_default() += 1;
        }
        self.real_tokens += real;
        self.step_tokens.add(real);
        self.padded_tokens += sizes.tokens.rows().max(real);
        self.submit_time += time;
    }

    /// Makes the entries that steps count in, so that counting allocates nothing.
    pub(crate) fn prepare(
        &mut self,
        reasons: impl Iterator<Item = &'static str>,
        piece_sizes: impl Iterator<Item = PieceSize>,
        full_sizes: impl Iterator<Item = PieceSize>,
        step_sizes: impl Iterator<Item = PieceSize>,
    ) {
        for reason in reasons.chain([Self::LAUNCHED_BY_MODE]) {
            self.misses.entry(reason).or_default();
        }
        for size in piece_sizes {
            self.piece_replays.entry(size).or_default();
        }
        for size in full_sizes {
            self.full_replays.entry(size).or_default();
        }
        for size in step_sizes.map(Some).chain([None]) {
            for mode in [StepMode::None, StepMode::Piecewise, StepMode::Full] {
                self.steps_by_kind.entry(ModeAndSize { mode, size }).or_default();
            }
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// How long something took, counted in buckets.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Histogram {
    /// How many took at most [`Self::BOUNDS`]`[i]` and longer than the bound before; the last are
    /// those that took longer than every bound.
    pub buckets: [u64; Self::BOUNDS.len() + 1],
    /// The sum of all times.
    pub sum: Duration,
}

impl Histogram {
    /// The upper bounds of the buckets.
    pub const BOUNDS: [Duration; 16] = [
        Duration::from_micros(50),
        Duration::from_micros(100),
        Duration::from_micros(250),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2_500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2_500),
        Duration::from_secs(10),
    ];

    /// Puts a time into its bucket and adds it to the sum.
    pub fn add(&mut self, time: Duration) {
        let bucket = Self::BOUNDS.partition_point(|bound| *bound < time);
        self.buckets[bucket] += 1;
        self.sum += time;
    }

    /// How many times were counted, over all buckets.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The mean; `None` where nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        let count = self.count();
        (count > 0).then(|| self.sum.div_f64(count as f64))
    }

    /// The bound that this share of what was counted did not pass: the upper one of its bucket, or
    /// `None` where nothing was counted, or the share is beyond every bound.
    pub fn bound_of(&self, share: f64) -> Option<Duration> {
        let wanted = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += n;
            seen >= wanted
        });
        Self::BOUNDS.get(bucket?).copied()
    }
}

/// A map by what its keys are called, as JSON wants them.
fn by_name<S: Serializer, K: std::fmt::Display>(
    counts: &BTreeMap<K, u64>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter().map(|(key, count)| (key.to_string(), count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_at_a_bound_is_within_it() {
        let mut found = Histogram::default();
        assert_eq!((found.mean(), found.bound_of(0.5)), (None, None));
        for us in [1, 50, 51, 400, 20_000_000] {
            found.add(Duration::from_micros(us));
        }
        assert_eq!((found.buckets[0], found.buckets[1], found.buckets[3]), (2, 1, 1));
        assert_eq!((found.buckets[16], found.count()), (1, 5));
        assert_eq!(found.bound_of(0.5), Some(Duration::from_micros(100)));
        assert_eq!(found.bound_of(1.0), None, "it took longer than every bound");
        assert!(Histogram::BOUNDS.is_sorted());
    }
}
