//! Encoders at work: items of mixed sizes, packed into steps whose graphs are captured at token
//! budgets.

pub mod packing;
mod text;

pub use text::{ItemError, LoadError, TextEncoder, TextItem, default_budgets};
