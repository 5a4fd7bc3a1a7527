//! What a model tells of its build and of its steps.

use crate::dispatch::{FallbackReason, StepSizes};
use crate::mode::StepMode;
use serde::Serialize;
use std::time::Duration;

/// How long the parts of building took, each to the end of its work on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BuildTimes {
    /// Every unique piece at every size, and the check of the launches.
    pub compile: Duration,
    /// Reserving memory and making the weights.
    pub load: Duration,
    /// Binding programs and making host blocks.
    pub bind: Duration,
    /// Choosing ways by measurement: no part of a start that finds them remembered.
    pub measure: Duration,
    /// Warming up, capturing, and mapping the states.
    pub capture: Duration,
}

/// How a submitted step ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepReport {
    /// Launched, in pieces or as one graph.
    pub mode: StepMode,
    /// Padded counts, or its own ones where it was launched.
    pub sizes: StepSizes,
    /// Why it did not replay, where its mode would.
    pub fallback: Option<FallbackReason>,
}
