//! An OpenAI-compatible server over an engine of `piecewise`.

pub mod chat;
mod http;
pub mod structured;
pub mod text;

pub use http::{ApiKeys, Limits, Outcome, ServedModel, Server, ServerOptions};
