//! What is chosen by measurement on a device, and what is done about it.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is done about choices that only a measurement can make.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TuneMode {
    /// Take the first ways, and the algorithms that the library would. Nothing else is compiled.
    Off,
    /// Take what the store remembers, and else what `off` takes. Nothing is measured.
    #[default]
    Load,
    /// Take what the store remembers, and else measure at start within `tune_seconds` and remember.
    Measure,
}

/// What choosing by measurement did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TuningReport {
    /// Pieces at a size with a choice, whose record was taken.
    pub loaded: usize,
    /// Those that were measured when the model was built.
    pub measured: usize,
    /// Those without a record that were not measured: left as they come.
    pub unmeasured: usize,
    /// Records that the library or the store did not accept.
    pub refused: usize,
    /// How long measuring took, all pieces together.
    pub time: Duration,
}

/// `3 of 5 measured in 2.1 s, 7 remembered; the rest is for the next who measures`, or
/// `7 remembered, 5 unmeasured`.
impl std::fmt::Display for TuningReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { loaded, measured, unmeasured, refused, time } = self;
        let (all, seconds) = (measured + unmeasured, time.as_secs_f64());
        if *measured > 0 {
            write!(f, "{measured} of {all} measured in {seconds:.1} s, {loaded} remembered")?;
        } else {
            write!(f, "{loaded} remembered, {unmeasured} unmeasured")?;
        }
        if *refused > 0 {
            write!(f, ", {refused} records refused")?;
        }
        let rest = *measured > 0 && *unmeasured > 0;
        f.write_str(if rest { "; the rest is for the next who measures" } else { "" })
    }
}

/// An algorithm as a library hands it out: opaque, and good for the same version and device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LibraryAlgorithm(pub [u64; 8]);

/// A product that a library computes, with what it offers for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryProduct {
    /// Which one: what the device knows it by, the same for launches that share its algorithm.
    pub product: String,
    /// At least one. The first is what is taken, the others as the library expects them to be worth.
    pub algorithms: Vec<LibraryAlgorithm>,
}
