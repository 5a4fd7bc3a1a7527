//! The tensor IR of piecewise: types, ops, regions, graphs, pieces and plans as data and text, the
//! builder, the verifier and the reference evaluator. It depends on nothing else in the workspace.

// The doubles below call it so.
#[cfg(test)]
extern crate self as piecewise_ir;

mod array;
pub mod builder;
pub mod custom;
pub mod diagnostic;
pub mod dim;
pub mod dtype;
pub mod e4m3;
pub mod entity;
pub mod eval;
pub mod literal;
pub mod module;
pub mod random;
mod terms;
#[cfg(test)]
#[path = "../../testing/src/graphs/mod.rs"]
pub mod testing;
pub mod text;
mod treatment;
pub mod types;
pub mod verify;

pub use terms::{graph, op, region, weight};

/// A digest of the sources of this crate, tests left out: what is lowered with it is a function of
/// it, so that a change of the code never finds what other code has made.
pub const SOURCE_DIGEST: &str = env!("PIECEWISE_SOURCE_DIGEST");
