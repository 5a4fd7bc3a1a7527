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
pub mod model;
mod perfetto;
pub mod pipeline;
pub mod stats;
mod step_trace;
pub mod words;

pub use step_trace::StepTraceWriter;

#[cfg(test)]
mod testing;
