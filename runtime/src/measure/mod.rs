//! Measuring steps: planned batches over a compiled model, timed by the device and by the host.
//!
//! A [`StepTimer`] runs a list of [`PlannedStep`]s with the host a step ahead, as the engine does:
//! where the device is the slower of the two it never waits, so that the marks around a step are
//! the step alone.

mod error;
mod interface;
mod plan;
mod timeline;
mod timer;
mod trace;
mod traffic;

pub use error::MeasureError;
pub use interface::{CaptureReport, HeldBytes, StepRecord, StepTimer};
pub use plan::{PlannedChunk, PlannedStep, StepTokens};
pub use timeline::{GroupSummary, LaunchSummary, LaunchTimes, Timeline};
pub use timer::ModelTimer;
pub use traffic::Traffic;

#[cfg(test)]
mod tests;
