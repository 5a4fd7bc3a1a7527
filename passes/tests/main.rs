//! Every test of the crate from outside, in one program: each further one would be linked anew.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

#[macro_use]
mod common;

mod absorbing;
#[path = "../../tests/support/cases.rs"]
mod cases;
mod check;
mod file_tests;
mod fuse;
mod layers;
mod optimize;
mod plan;
mod random;
mod rewrite;
mod split;
mod stitched;
mod support;
mod verified;
mod whole;
