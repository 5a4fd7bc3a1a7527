//! What is chosen by measurement on a device, and what is done about it.

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
    /// Take the first alternative, and the algorithms that the library would.
    Off,
    /// Take what the store remembers, and else as `off`.
    #[default]
    Load,
    /// Take what the store remembers, and else measure and remember.
    Measure,
}

/// What tuning did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct TuningReport {
    /// Choices whose record was taken.
    pub loaded: usize,
    /// Choices that were measured.
    pub measured: usize,
    /// Choices without a record, left as they come.
    pub untuned: usize,
    /// Records that the device, the library or the store did not accept.
    pub refused: usize,
}

impl TuningReport {
    /// Adds what another tuning did.
    pub fn add(&mut self, other: Self) {
        self.loaded += other.loaded;
        self.measured += other.measured;
        self.untuned += other.untuned;
        self.refused += other.refused;
    }
}
