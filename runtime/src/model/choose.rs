//! Which alternative of each artifact is bound: measured on the device, in graphs over several
//! layers, so that weights come from memory and launches follow each other as they do in a step.

use super::bind::BindSite;
use super::error::ModelError;
use super::staging::Staging;
use piecewise_backend::artifact::{Artifact, Digest};
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::store::Store;
use piecewise_backend::tuning::{TuneMode, TuningReport};
use piecewise_ir::entity::{Entity, UniquePieceId};
use piecewise_ir::module::PieceUse;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of entry that the store keeps choices under, beside those of algorithms.
const KIND: &str = "tuning";

/// The most uses of a piece that are timed in one graph.
const USES: usize = 8;

/// Replays that are timed; the fastest counts.
const ROUNDS: usize = 3;

/// An alternative whose first use takes so many times as long as the fastest one's is not timed
/// any further.
const HOPELESS: u32 = 3;

/// What was measured of an artifact.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Record {
    chosen: usize,
    /// Microseconds of each alternative over the uses that were timed; nothing where it could not
    /// run or was hopeless.
    microseconds: Vec<Option<f64>>,
}

/// The chosen alternatives: by unique piece, then in the order of its sizes.
#[derive(Debug, Default)]
pub(super) struct Choices {
    by_unique: Vec<Vec<usize>>,
    pub(super) report: TuningReport,
}

impl Choices {
    /// The alternative of a unique piece at its `i`th size.
    pub(super) fn of(&self, unique: UniquePieceId, i: usize) -> usize {
        self.by_unique[unique.index()][i]
    }

    /// Chooses the alternative of every artifact that has none yet, and the algorithms of the programs
    /// that it binds for that.
    ///
    /// # Errors
    /// When a measured run fails. An alternative that can't be bound or captured is passed over.
    pub(super) fn extend<D: Device>(
        &mut self,
        device: &mut D,
        site: &BindSite<'_>,
        staging: &mut Staging<D::Event>,
        mode: TuneMode,
        store: &dyn Store,
    ) -> Result<(), ModelError> {
        if mode == TuneMode::Measure {
            staging.fill_empty(site.symbols)?;
            device.write(site.memory.arena.base, &staging.mirror)?;
        }
        self.by_unique.resize_with(site.compiled.artifacts.len(), Vec::new);
        for unique in site.stitch.unique.keys() {
            let uses: Vec<_> = site
                .stitch
                .uses
                .values()
                .filter(|usage| usage.unique == unique)
                .take(USES)
                .collect();
            let chosen = &mut self.by_unique[unique.index()];
            for i in chosen.len()..site.compiled.artifacts[unique.index()].len() {
                let piece = Measured { site, uses: &uses, unique, i };
                chosen.push(match mode {
                    TuneMode::Off => 0,
                    _ => piece.choose(device, mode, store, &mut self.report)?,
                });
            }
        }
        Ok(())
    }

    /// Forgets what was chosen beyond so many sizes of each unique piece.
    pub(super) fn truncate(&mut self, counts: &[usize]) {
        for (chosen, &count) in self.by_unique.iter_mut().zip(counts) {
            chosen.truncate(count);
        }
    }
}

/// A unique piece at one of its sizes.
struct Measured<'a> {
    site: &'a BindSite<'a>,
    uses: &'a [&'a PieceUse],
    unique: UniquePieceId,
    i: usize,
}

impl Measured<'_> {
    fn artifact(&self) -> &Artifact {
        &self.site.compiled.artifacts[self.unique.index()][self.i]
    }

    fn limits(&self) -> &[u64] {
        &self.site.compiled.sizes[self.unique.index()][self.i].limits
    }

    fn choose<D: Device>(
        &self,
        device: &mut D,
        mode: TuneMode,
        store: &dyn Store,
        report: &mut TuningReport,
    ) -> Result<usize, ModelError> {
        let count = self.artifact().alternatives.len();
        if count == 1 {
            self.tune_algorithms(device, 0, mode, store, report)?;
            return Ok(0);
        }
        let key = self.key(&device.model());
        let stored = key.and_then(|key| store.get(KIND, key).ok().flatten());
        let record = stored.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        if let Some(record) = record.filter(|r| r.chosen < count) {
            report.loaded += 1;
            self.tune_algorithms(device, record.chosen, mode, store, report)?;
            return Ok(record.chosen);
        }
        if mode != TuneMode::Measure {
            report.untuned += 1;
            self.tune_algorithms(device, 0, mode, store, report)?;
            return Ok(0);
        }
        let record = self.measure(device, store, report)?;
        report.measured += 1;
        let bytes = serde_json::to_vec(&record).ok();
        let kept = key.zip(bytes).is_some_and(|(key, bytes)| {
            let model = device.model();
            let factors = [("device", model.as_str()), ("measured", "alternatives")];
            store.put(KIND, key, &factors, &bytes).is_ok()
        });
        report.refused += usize::from(!kept);
        Ok(record.chosen)
    }

    /// What the choice depends on: the alternatives and the device's model.
    fn key(&self, model: &str) -> Option<Digest> {
        let artifact = self.artifact();
        let parts = (KIND, model, self.limits(), artifact.size, &artifact.alternatives);
        serde_json::to_vec(&parts).ok().map(|bytes| Digest::of(&bytes))
    }

    fn tune_algorithms<D: Device>(
        &self,
        device: &mut D,
        alternative: usize,
        mode: TuneMode,
        store: &dyn Store,
        report: &mut TuningReport,
    ) -> Result<(), ModelError> {
        let Some(usage) = self.uses.first() else { return Ok(()) };
        if mode == TuneMode::Measure {
            self.write_counts(device)?;
        }
        let program = self.site.bind(device, usage, "tuning", self.i, alternative)?;
        report.add(device.tune(&program, self.limits(), mode, store)?);
        Ok(())
    }

    /// Every row of the size is real: kernels skip the others.
    fn write_counts<D: Device>(&self, device: &mut D) -> Result<(), DeviceError> {
        let counts = self.limits().iter().map(|&n| i32::try_from(n).unwrap_or(i32::MAX));
        let bytes: Vec<u8> = counts.flat_map(i32::to_le_bytes).collect();
        device.write(self.site.memory.counts(), &bytes)
    }

    fn measure<D: Device>(
        &self,
        device: &mut D,
        store: &dyn Store,
        report: &mut TuningReport,
    ) -> Result<Record, ModelError> {
        self.write_counts(device)?;
        let count = self.artifact().alternatives.len();
        let mut record = Record { chosen: 0, microseconds: vec![None; count] };
        let mut fastest: Option<(Duration, Duration)> = None;
        for alternative in 0..count {
            let bind = |device: &mut D, usage: &&PieceUse| {
                self.site.bind(device, usage, "tuning", self.i, alternative)
            };
            let programs: Result<Vec<_>, _> =
                self.uses.iter().map(|usage| bind(device, usage)).collect();
            let Some(programs) = usable(programs, alternative) else { continue };
            let Some(first) = programs.first() else { continue };
            report.add(device.tune(first, self.limits(), TuneMode::Measure, store)?);
            let once = device.capture("tuning", &[first], self.limits());
            let Some(once) = usable(once, alternative) else { continue };
            device.replay_time(&once)?;
            let once = device.replay_time(&once)?;
            if fastest.is_some_and(|(least, _)| once > least * HOPELESS) {
                continue;
            }
            let all: Vec<_> = programs.iter().collect();
            let all = device.capture("tuning", &all, self.limits());
            let Some(all) = usable(all, alternative) else { continue };
            device.replay_time(&all)?;
            let mut time = Duration::MAX;
            for _ in 0..ROUNDS {
                time = time.min(device.replay_time(&all)?);
            }
            record.microseconds[alternative] = Some(time.as_secs_f64() * 1e6);
            if fastest.is_none_or(|(_, least)| time < least) {
                fastest = Some((once, time));
                record.chosen = alternative;
            }
        }
        Ok(record)
    }
}

fn usable<T>(result: Result<T, DeviceError>, alternative: usize) -> Option<T> {
    match result {
        Ok(made) => Some(made),
        Err(error) => {
            tracing::debug!(%error, alternative, "an alternative is passed over");
            None
        }
    }
}
