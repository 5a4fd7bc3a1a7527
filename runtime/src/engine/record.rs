//! What is said about each step.

use crate::words::StepTrace;
use piecewise_planner::IterationRecord;

/// Is called with every step that was read back, with its wall time and the device's (see
/// [`StepTimes`](crate::words::StepTimes)).
pub type StepObserver = Box<dyn FnMut(&IterationRecord) + Send>;

/// Is called with every traced step that was read back.
pub type TraceObserver = Box<dyn FnMut(StepTrace) + Send>;

/// A count of a step, which the bounds of a model keep far below the limit.
pub(super) fn count(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
