//! Every test of the crate from outside, in one program: each further one would be linked anew.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]
#![allow(clippy::print_stdout, reason = "a test says what it measured")]

#[allow(dead_code, reason = "the program's tests use more of it")]
#[path = "../../tests/support/bounded.rs"]
mod bounded;
mod cpu_capture;
mod cpu_layer;
mod cpu_nodes;
mod cpu_regions;
mod cpu_soundness;
mod cpu_weights;
mod cuda_device;
mod cuda_nvrtc;
mod cuda_prompts;
mod cuda_regions;
mod cuda_segments;
mod handles;
mod harness;
mod nvtx;
#[path = "../../tests/support/skip.rs"]
mod skip;
mod support;
