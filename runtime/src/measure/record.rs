//! What a timer measures.

use crate::words::{CapturedGraph, FallbackReason, StepMode, StepSizes};
use piecewise_backend::device::GraphShape;
use piecewise_backend::device::measure::LaunchCounts;
use std::time::Duration;

/// A step as it was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepRecord {
    /// Between the marks around the step, by the device's clock.
    pub device: Duration,
    /// From the end of the step before to the end of this one, as the host saw them.
    pub wall: Duration,
    /// From the first chunk of the batch to the last call of the driver.
    pub submit: Duration,
    /// How many launches were enqueued, of graphs and of kernels.
    pub launches: LaunchCounts,
    /// Whether it was launched, replayed in pieces or as a whole.
    pub mode: StepMode,
    /// Padded counts, or its own ones where it was launched.
    pub sizes: StepSizes,
    /// Why it did not replay where its mode would.
    pub fallback: Option<FallbackReason>,
    /// The ids that it sampled, in the order of its chunks.
    pub ids: Vec<u32>,
}

/// What capturing a mode took.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CaptureReport {
    /// Each graph, in the order of capture.
    pub graphs: Vec<CapturedGraph>,
    /// The whole, with the warm-up.
    pub time: Duration,
    /// By how much the device's free memory fell; `None` where that is only estimated.
    pub bytes: Option<u64>,
    /// What is in the graphs.
    pub shape: GraphShape,
}

/// Bytes that the parts of a model held, by the driver's figure of free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct HeldBytes {
    /// Slots and scratch.
    pub arena: u64,
    /// Made ones included.
    pub weights: u64,
    /// KV pages and slots of sequences.
    pub states: u64,
}
