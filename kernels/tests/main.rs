//! Every test of the crate from outside, in one program: each further one would be linked anew.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

#[macro_use]
#[path = "../../passes/tests/common/mod.rs"]
mod common;

#[path = "cuda/absorbing.rs"]
mod absorbing;
#[path = "cuda/attention.rs"]
mod attention;
#[allow(dead_code, reason = "the program's tests use more of it")]
#[path = "../../tests/support/bounded.rs"]
mod bounded;
mod cuda_absorbed;
mod cuda_ahead;
mod cuda_attention;
mod cuda_attention_scores;
mod cuda_causal_window;
mod cuda_elements;
mod cuda_emulated;
mod cuda_experts;
mod cuda_kernels;
mod cuda_regions;
mod cuda_ring;
mod cuda_scaled;
mod cuda_segments;
mod cuda_tensor;
mod cuda_tiles;
#[path = "cuda/emulate.rs"]
mod emulate;
#[path = "cuda/layer.rs"]
mod layer;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;
#[allow(dead_code, unreachable_pub, reason = "tests of the backend use more of it")]
#[path = "../../backend/tests/harness/random.rs"]
mod random;
mod region_parts;
#[path = "../../tests/support/skip.rs"]
mod skip;
#[path = "cuda/values.rs"]
mod values;
