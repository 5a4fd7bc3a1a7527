//! An OpenAI-compatible server over an engine of `piecewise`.

pub mod chat;
pub mod structured;
pub mod text;
