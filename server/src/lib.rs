//! An OpenAI-compatible server over an engine of `piecewise`.

pub mod text;
