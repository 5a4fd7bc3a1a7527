//! The tests of the server as one program.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]
#![allow(clippy::print_stdout, reason = "a skipped test says why")]

mod chat_templates;
mod client;
mod device_failure;
mod generation_defaults;
mod life;
mod replies;
mod restraint;
mod sampling_fields;
mod structured;
mod text;
mod vllm_render;
