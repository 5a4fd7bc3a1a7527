//! What a model tells of its build and of its steps.

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

/// What happens while a model is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Unique pieces at sizes, compiled or taken from the store.
    Compiling {
        /// Pieces at sizes so far.
        done: usize,
        /// Pieces at sizes in all.
        total: usize,
    },
    /// Weights made on the device.
    Loading {
        /// Bytes that are on the device.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Steps in whose captured graph ways were chosen by measurement.
    Measuring {
        /// Steps so far.
        done: usize,
        /// Steps in all.
        total: usize,
        /// How long measuring may take; what is not reached by then is left out. [`Duration::MAX`]
        /// where it goes to its end.
        budget: Duration,
    },
    /// Graphs captured.
    Capturing {
        /// Captures so far.
        done: usize,
        /// Captures in all.
        total: usize,
    },
}

/// How long a step took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepTimes {
    /// From its submit, or the end of the step before where that came later, to the arrival of its
    /// outputs, as the host saw it.
    pub wall: Duration,
    /// From the first copy of its inputs to the last of its outputs by the device's clock; `None`
    /// where steps are not timed by it.
    pub gpu: Option<Duration>,
}
