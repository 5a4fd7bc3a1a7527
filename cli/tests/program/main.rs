//! The program as its users run it: one test program, because linking is what takes long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::print_stdout, reason = "a test says what it compared")]

mod ahead;
mod bad_input;
mod bench;
mod bench_serve;
mod bisect;
#[path = "../../../tests/support/bounded.rs"]
mod bounded;
mod cache;
mod cache_faults;
mod cache_remote;
mod chat;
mod config;
mod documents;
mod dumps;
mod embed;
mod encode;
mod generate_images;
mod gpu_scripts;
mod hub;
mod model_families;
mod names;
mod nvtx;
mod once;
mod output;
#[path = "../../../tests/support/overflowing.rs"]
mod overflowing;
mod packings;
mod plan;
mod report;
mod serve;
mod server_settings;
#[path = "../../../tests/support/skip.rs"]
mod skip;
mod start;
mod support;
mod tiny_model;
mod tune;
#[path = "../../../tests/support/turned.rs"]
mod turned;
