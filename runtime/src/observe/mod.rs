//! What is told of a running model: statistics, metrics and traces. It is fed by those who run, and
//! knows none of them.

mod exposition;
mod kept_trace;
mod metrics;
mod perfetto;
mod process;
mod requests;
mod spread;
mod stats;
mod step_trace;

pub(crate) use kept_trace::KeptTrace;
pub use metrics::{Metrics, Snapshot};
pub(crate) use metrics::{PUBLISH_EVERY, Ticker};
#[cfg(test)]
pub(crate) use perfetto::slices;
pub(crate) use perfetto::{Note, TraceWriter, Track};
pub use requests::{RequestMetrics, RequestTimes};
pub use stats::{Histogram, ModeAndSize, Statistics, StepTokens};
pub use step_trace::StepTraceWriter;
