//! The runtime: a compiled model with its dispatch, capture, stitching, KV cache and statistics.

pub mod batch;
pub mod choose;
pub mod config;
pub mod device;
pub mod dispatch;
pub mod engine;
pub mod engine_thread;
pub mod measure;
pub mod memory;
pub mod observe;
pub mod pipeline;
pub mod steps;
pub mod store;
pub mod words;

#[cfg(test)]
mod testing;
