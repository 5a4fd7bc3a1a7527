//! Compiled model: dispatch, capture, stitching, KV cache, statistics, capture planner.

pub mod capture_planner;
