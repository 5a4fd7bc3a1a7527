//! The runtime: a compiled model with its dispatch, capture, stitching, KV cache and statistics.

pub mod artifact_store;
pub mod batch;
pub mod checks;
pub mod config;
pub mod dispatch;
pub mod engine;
pub mod engine_thread;
pub mod kv;
pub mod measure;
pub mod metrics;
pub mod mode;
pub mod model;
mod perfetto;
pub mod pipeline;
pub mod stats;
mod step_trace;
pub mod symbols;

pub use piecewise_kernels::roles;
pub use piecewise_planner::sizes;
pub use step_trace::StepTraceWriter;

#[cfg(test)]
mod testing;
