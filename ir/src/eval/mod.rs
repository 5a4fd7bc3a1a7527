//! The reference evaluator: every op in f64.

mod array;

pub use array::Array;
