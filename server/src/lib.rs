//! An OpenAI-compatible server over an engine of `piecewise`.

mod http;
pub mod text;

pub use http::{ApiKeys, Limits, Outcome, SamplingDefaults, ServedModel, Server, ServerOptions};
