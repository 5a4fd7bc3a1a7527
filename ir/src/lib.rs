//! The tensor IR of piecewise: types, ops, regions, graphs, pieces and plans as data and text, the
//! builder, the verifier and the reference evaluator. It depends on nothing else in the workspace.

pub mod builder;
pub mod custom;
pub mod diagnostic;
pub mod dim;
pub mod dtype;
pub mod entity;
pub mod eval;
pub mod graph;
pub mod literal;
pub mod module;
pub mod op;
pub mod region;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod types;
pub mod verify;
pub mod weight;
