//! What is chosen by measurement on a device, and what is done about it.

use std::time::Duration;

/// What is done about choices that only a measurement can make.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TuneMode {
    /// Take the first ways, and the algorithms that the library would. Nothing else is compiled.
    Off,
    /// Take what the store remembers, and else as `off`.
    #[default]
    Load,
    /// Take what the store remembers, and else measure within `tune_seconds` and remember.
    Measure,
}

/// What choosing by measurement did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct TuningReport {
    /// Pieces at a size with a choice, whose record was taken.
    pub loaded: usize,
    /// Those that were measured.
    pub measured: usize,
    /// Those without a record that were not measured: left as they come.
    pub unmeasured: usize,
    /// Records that the library or the store did not accept.
    pub refused: usize,
    /// How long measuring took.
    pub time: Duration,
}

impl TuningReport {
    /// Pieces at a size that had no record.
    pub fn without_record(&self) -> usize {
        self.measured + self.unmeasured
    }
}

/// An algorithm as a library hands it out: opaque, and good for the same version and device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct LibraryAlgorithm(pub [u64; 8]);

/// A product that a library computes, with what it offers for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryProduct {
    /// Which one: what the device knows it by, the same for launches that share its algorithm.
    pub product: String,
    /// At least one. The first is what is taken, the others as the library expects them to be worth.
    pub algorithms: Vec<LibraryAlgorithm>,
}
