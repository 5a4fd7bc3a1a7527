//! An OpenAI-compatible server over an engine or an encoder of `piecewise`.

pub mod chat;
mod field;
mod http;
pub mod operate;
pub mod places;
pub mod seldom;
pub mod structured;
pub mod text;

pub use http::{
    AllowedOrigins, ApiKeys, EncoderKind, Limits, Matryoshka, Outcome, ServedEncoder, ServedModel,
    Server, ServerOptions, Status, Tls, answer_status, check_operator,
};
