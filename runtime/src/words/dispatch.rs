//! How a step runs, and why steps are launched.

use super::StepMode;
use super::shapes::StepSizes;
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

/// Why a step that should have replayed was launched.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FallbackReason {
    /// More tokens than the largest size.
    AboveLargestSize,
    /// Padding is off and no size is exact.
    NoExactSize,
    /// More rows or sequences than the graph of this size holds.
    TooManyRows,
    /// The graph was not captured: capture failed, is disabled, or is yet to come.
    NotCaptured,
    /// The rows run in several calls of the head, which no graph of a whole step holds.
    SeveralHeadCalls,
    /// A graph was refused when it was submitted; from there on the step was launched.
    ReplayRefused,
    /// The size is one that the configuration has launched.
    LaunchedSize,
    /// It was measured that a replay of the padded size takes longer.
    PaddingLoses,
    /// It was measured that the size's programs launched take less time than its pieces replayed.
    LaunchesFaster,
}

impl FallbackReason {
    /// In the order in which statistics list them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether launching is what was chosen, by the configuration or by measurement, so that nothing
    /// is amiss.
    pub const fn is_chosen(self) -> bool {
        matches!(self, Self::LaunchedSize | Self::PaddingLoses | Self::LaunchesFaster)
    }
}

/// How a step runs, at which sizes, and why not better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// How, provided that the graphs are there.
    pub mode: StepMode,
    /// The captured counts that hold it, or its own counts where it is launched.
    pub sizes: StepSizes,
    /// Why it can't replay, where the mode would have it replay.
    pub fallback: Option<FallbackReason>,
}
