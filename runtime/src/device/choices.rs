//! Which ways each artifact of a model is bound in, and what the store remembers of that.

use super::bind::{BindSite, Place};
use super::record::{LaunchedRecord, Record, RecordKey, WaysOrigin};
use crate::words::StepSizes;
use piecewise_backend::artifact::{Artifact, Choice, PieceSize};
use piecewise_backend::device::Device;
use piecewise_backend::store::Store;
use piecewise_backend::tuning::{TuneMode, TuningReport};
use piecewise_ir::entity::{Entity, UniquePieceId};
use std::collections::BTreeMap;

/// How an artifact is run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) choice: Choice,
    pub(crate) origin: WaysOrigin,
    /// What was measured of it, now or before.
    pub(crate) record: Option<Record>,
}

/// How each artifact is run: by unique piece, then in the order of its sizes.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    pub(crate) by_unique: Vec<Vec<Chosen>>,
    /// What was measured of steps in pieces, now or before.
    pub(crate) launched: BTreeMap<StepSizes, (WaysOrigin, LaunchedRecord)>,
    pub(crate) report: TuningReport,
}

impl Choices {
    /// How a unique piece is run at its `i`th size.
    pub(crate) fn of(&self, unique: UniquePieceId, i: usize) -> &Choice {
        &self.by_unique[unique.index()][i].choice
    }

    /// Takes for every artifact that has no choice yet what the store remembers, if that is asked for,
    /// and otherwise its first ways.
    pub(crate) fn extend(
        &mut self,
        device: &mut dyn Device,
        site: &BindSite<'_>,
        mode: TuneMode,
        store: &dyn Store,
    ) {
        self.by_unique.resize_with(site.compiled.artifacts.len(), Vec::new);
        for unique in site.stitch.unique.keys() {
            let artifacts = &site.compiled.artifacts[unique.index()];
            let known = self.by_unique[unique.index()].len();
            for (i, artifact) in artifacts.iter().enumerate().skip(known) {
                let chosen = match is_open(artifact) && mode != TuneMode::Off {
                    true => self.load(device, site, (unique, i), store),
                    false => Chosen::default(),
                };
                self.by_unique[unique.index()].push(chosen);
            }
        }
    }

    fn load(
        &mut self,
        device: &mut dyn Device,
        site: &BindSite<'_>,
        place: Place,
        store: &dyn Store,
    ) -> Chosen {
        let artifact = site.artifact(place);
        let key = RecordKey::new(device, site, place);
        let Some(record) = key.load(store, artifact) else {
            return Chosen { origin: WaysOrigin::Unmeasured, ..Chosen::default() };
        };
        let mut preferred = record.algorithms.iter().map(|(product, algorithm)| {
            device.prefer(product, *algorithm).unwrap_or_else(|error| {
                tracing::debug!(%error, "a remembered algorithm is not taken");
                false
            })
        });
        if !preferred.all(|is_taken| is_taken) {
            self.report.refused += 1;
        }
        self.report.loaded += 1;
        let choice = record.choice.clone();
        Chosen { choice, origin: WaysOrigin::Remembered, record: Some(record) }
    }

    /// Forgets what was chosen beyond so many sizes of each unique piece.
    pub(crate) fn truncate(&mut self, counts: &[usize]) {
        for (chosen, &count) in self.by_unique.iter_mut().zip(counts) {
            chosen.truncate(count);
        }
    }

    /// Whether an artifact has a choice that nobody has measured.
    pub(crate) fn wants_measuring(&self, (unique, i): Place) -> bool {
        self.by_unique[unique.index()][i].origin == WaysOrigin::Unmeasured
    }

    pub(crate) fn get_mut(&mut self, (unique, i): Place) -> &mut Chosen {
        &mut self.by_unique[unique.index()][i]
    }
}

/// Whether a measurement may choose: of ways, or of a library's algorithms. What runs at any size is
/// run by no step that is measured.
pub(super) fn is_open(artifact: &Artifact) -> bool {
    let is_sized = !matches!(artifact.size, PieceSize::General(_));
    is_sized && (artifact.has_choices() || artifact.ways().any(|way| way.uses_library))
}
