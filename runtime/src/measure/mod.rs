//! Measuring steps: planned batches over a compiled model, timed by the device and by the host.
//!
//! A [`ModelTimer`] runs a list of [`PlannedStep`]s with the host a step ahead, as the engine does:
//! where the device is the slower of the two it never waits, so that the marks around a step are
//! the step alone.

mod bytes_to_read;
mod error;
mod plan;
mod record;
mod timeline;
mod timer;
mod trace;

pub use bytes_to_read::{BytesToRead, ExpertBytes};
pub use error::MeasureError;
pub use plan::{PlannedChunk, PlannedStep, StepTokens};
pub use record::{CaptureReport, HeldBytes, StepRecord};
pub use timeline::{GroupSummary, LaunchSummary, LaunchTimes, Timeline};
pub use timer::ModelTimer;

#[cfg(test)]
mod tests;
