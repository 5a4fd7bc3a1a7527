//! What a launch knows of the step it belongs to.

/// A step as the host sees it: counts and sizes by symbol, host copies of inputs by index.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// The true size of each symbol, by symbol index.
    pub counts: &'a [u64],
    /// The padded size of each symbol, by symbol index.
    pub sizes: &'a [u64],
    /// For each input of the step, its bytes as staged, padding included; nothing for one of floats,
    /// of which the host keeps no copy. Empty where no launch on the device could read it.
    pub inputs: &'a [&'a [u8]],
}

/// How a launch happens. What is captured sees no host values, by type.
#[derive(Clone, Copy, Debug)]
pub enum LaunchContext<'a> {
    /// In the middle of a step, one by one.
    Step(&'a StepContext<'a>),
    /// Into a captured graph (or from one), for these padded sizes by symbol index.
    Capture(&'a [u64]),
}

impl<'a> LaunchContext<'a> {
    /// The padded size of each symbol, by symbol index.
    pub fn sizes(self) -> &'a [u64] {
        match self {
            Self::Step(step) => step.sizes,
            Self::Capture(sizes) => sizes,
        }
    }
}

/// In which batches an implementation of an op may be captured.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CaptureSupport {
    /// In none: what it launches depends on host values.
    Never,
    /// Where every sequence brings one token.
    SingleTokenDecode,
    /// Where every sequence brings the same number of tokens.
    UniformBatch,
    /// In steps of any sequences and lengths.
    Always,
}
