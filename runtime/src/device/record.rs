//! What was measured of an artifact or of a step, as the store keeps it, and where a choice comes from.

use super::bind::{BindSite, Place};
use crate::store::symbols_seen;
use crate::words::StepSizes;
use piecewise_backend::artifact::{Artifact, Choice, Digest};
use piecewise_backend::device::Device;
use piecewise_backend::store::{Entry, Store};
use piecewise_backend::tuning::LibraryAlgorithm;
use piecewise_ir::entity::Entity;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The kinds of entry that the store keeps records under: of an artifact, and of a step in pieces.
const KIND: &str = "tuning";
const KIND_OF_STEP: &str = "launched";

/// What was measured of an artifact in a captured step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The digest of the ways that it was measured among.
    pub(crate) ways: Digest,
    pub(crate) choice: Choice,
    /// The algorithms that the library is to take for products of the choice.
    pub(crate) algorithms: Vec<(String, LibraryAlgorithm)>,
    /// The step that it was measured in, for people.
    pub(crate) step: String,
    /// Microseconds of that step with every first way, where what is remembered of it was not taken
    /// already, and as it was left.
    pub(crate) unmeasured_us: f64,
    pub(crate) chosen_us: f64,
    /// The share of that step that the choice saves, by the trials that it won.
    pub(crate) gained: f64,
    /// The share of that step below which a difference means nothing.
    pub(crate) spread: f64,
    /// What was tried, in order.
    pub(crate) trials: Vec<TrialRecord>,
}

/// A choice that was tried.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TrialRecord {
    pub(crate) choice: Choice,
    /// An algorithm of a library's product that was tried with it.
    pub(crate) algorithm: bool,
    /// Microseconds of the step, and of the best so far in the same rounds.
    pub(crate) step_us: f64,
    pub(crate) best_us: f64,
}

impl Record {
    pub(crate) fn new(artifact: &Artifact, step: &str) -> Self {
        Self {
            ways: ways_of(artifact),
            choice: Choice::default(),
            algorithms: Vec::new(),
            step: step.to_owned(),
            unmeasured_us: 0.0,
            chosen_us: 0.0,
            gained: 0.0,
            spread: 0.0,
            trials: Vec::new(),
        }
    }
}

/// What was measured of a step in pieces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchedRecord {
    /// The digest of the ways of each artifact that it was measured with.
    pub(crate) ways: Vec<Digest>,
    pub(crate) is_launched: bool,
    /// The step, for people, and its microseconds both ways.
    pub(crate) step: String,
    pub(crate) replayed_us: f64,
    pub(crate) launched_us: f64,
    /// The share of the step below which a difference means nothing.
    pub(crate) spread: f64,
}

/// The names, launches and images of every way.
pub(crate) fn ways_of(artifact: &Artifact) -> Digest {
    Digest::of(&serde_json::to_vec(&artifact.alternatives).unwrap_or_default())
}

/// What a record is kept under.
#[derive(Clone, Debug)]
pub(crate) struct RecordKey {
    kind: &'static str,
    factors: Vec<(&'static str, String)>,
}

impl RecordKey {
    /// Of an artifact on a device; the library's version counts where a way is the library's.
    pub(crate) fn new(device: &dyn Device, site: &BindSite<'_>, place: Place) -> Self {
        let artifact = site.artifact(place);
        let factors = vec![
            ("piece", Digest(artifact.piece).to_string()),
            ("size", artifact.size.to_string()),
            ("symbols", site.symbols_of(place)),
        ];
        let uses_library = artifact.ways().any(|way| way.uses_library);
        Self { kind: KIND, factors }.made_by(device, site, uses_library)
    }

    /// Of a step in pieces: `members` are its artifacts in order, each with whether it is captured. What
    /// makes the record of any of them another makes this one another, too.
    pub(crate) fn of_step(
        device: &dyn Device,
        site: &BindSite<'_>,
        sizes: &StepSizes,
        members: &[(Place, bool)],
    ) -> Self {
        let mut text = String::new();
        let mut uses_library = false;
        for &(place, is_captured) in members {
            let (artifact, symbols) = (site.artifact(place), site.symbols_of(place));
            let piece = Digest(artifact.piece);
            text += &format!("{piece} {} {symbols} {is_captured}\n", artifact.size);
            uses_library |= artifact.ways().any(|way| way.uses_library);
        }
        let factors = vec![
            ("pieces", Digest::of(text.as_bytes()).to_string()),
            ("sizes", format!("{sizes:?}")),
        ];
        Self { kind: KIND_OF_STEP, factors }.made_by(device, site, uses_library)
    }

    fn made_by(mut self, device: &dyn Device, site: &BindSite<'_>, uses_library: bool) -> Self {
        self.factors.push(("compiler", site.compiled.compiler.clone()));
        self.factors.push(("device", device.model()));
        if uses_library {
            self.factors.push(("library", device.library().unwrap_or_default()));
        }
        self
    }

    fn digest(&self) -> Digest {
        Digest::of(format!("{:?}", self.factors).as_bytes())
    }

    /// What is kept of an artifact; nothing where that was measured among other ways.
    pub(crate) fn load(&self, store: &dyn Store, artifact: &Artifact) -> Option<Record> {
        let record: Record = self.get(store)?;
        let fits = record.ways == ways_of(artifact) && artifact.chosen(&record.choice).is_ok();
        fits.then_some(record)
    }

    /// What is kept under this key, whatever it was measured among.
    pub(crate) fn get<R: DeserializeOwned>(&self, store: &dyn Store) -> Option<R> {
        let bytes = store.get(self.kind, self.digest()).ok().flatten()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Keeps a record; whether the store took it.
    pub(crate) fn keep<R: Serialize>(&self, store: &dyn Store, record: &R) -> bool {
        let factors: Vec<_> = self.factors.iter().map(|(name, v)| (*name, v.as_str())).collect();
        let Ok(bytes) = serde_json::to_vec(record) else { return false };
        let entry = Entry { kind: self.kind, key: self.digest(), factors: &factors, bytes: &bytes };
        store.put(entry).is_ok()
    }
}

impl BindSite<'_> {
    /// The symbols that an artifact counts with and their bounds, as the key of its piece has them.
    fn symbols_of(&self, (unique, i): Place) -> String {
        let bounds = &self.compiled.sizes[unique.index()][i].bounds;
        symbols_seen(&self.stitch.unique[unique], bounds)
    }
}

/// Where a choice comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaysOrigin {
    /// There is nothing to choose, or nobody asked.
    #[default]
    First,
    /// Nothing is known: the first ways.
    Unmeasured,
    /// The store had a record.
    Remembered,
    /// It was measured at this start.
    Measured,
}
