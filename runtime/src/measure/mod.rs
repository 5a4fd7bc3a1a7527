//! Measuring steps: planned batches over a compiled model, timed by the device and by the host.
//!
//! [`StepTimer`] runs a list of [`PlannedStep`]s with the host a step ahead, as the engine does:
//! where the device is the slower of the two it never waits, so that the marks around a step are
//! the step alone. [`ModelTimer`] is the one of a model on
//! a device.

mod error;
mod plan;
mod timeline;
mod timer;
mod trace;
mod traffic;

pub use error::MeasureError;
pub use plan::{PlannedChunk, PlannedStep, StepTokens};
pub use timeline::{GroupSummary, LaunchSummary, LaunchTimes, Timeline};
pub use timer::{CaptureReport, ModelTimer, StepRecord, StepTimer};
pub use traffic::Traffic;

#[cfg(test)]
mod tests;
