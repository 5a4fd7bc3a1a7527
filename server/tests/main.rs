//! The tests of the server as one program.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]
#![allow(clippy::print_stdout, reason = "a test says what it measured")]

mod asked_fields;
mod bad_logits;
mod byte_fallback;
mod chat_templates;
mod client;
mod device_failure;
mod encoder;
mod fuzz;
#[path = "../../tests/support/fuzz.rs"]
mod fuzzing;
mod generation_defaults;
mod grammars;
mod idioms;
mod life;
mod messages;
mod operator;
mod origins;
#[path = "../../tests/support/overflowing.rs"]
mod overflowing;
mod passed_over;
mod replies;
mod restraint;
mod sampling_fields;
#[path = "../../tests/support/skip.rs"]
mod skip;
mod structured;
mod text;
mod thoughts;
#[path = "../../tests/support/tiny_engine.rs"]
mod tiny_engine;
mod tool_call_replies;
mod tool_calls;
mod vllm_render;
