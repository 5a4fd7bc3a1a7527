//! What a model tells of its build.

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
