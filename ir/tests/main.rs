//! Every test of the crate from outside, in one program: each further one would be linked anew.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

#[path = "../../tests/support/cases.rs"]
mod cases;
#[path = "support/decoder.rs"]
mod decoder;
mod support;
mod text_document;
mod text_files;
mod text_limits;
mod text_print;
mod text_round_trip;
