//! The reference evaluator: every op in f64, as the op table says.
//!
//! It is the oracle of every backend, so it is written to be read: one function an op, no fusion,
//! no parallelism. Elements are held in f64, which is exact for every dtype but `i64` beyond
//! 2^53.

mod constant;
mod elementwise;
mod error;
mod evaluator;
mod frame;
mod layout;
mod matmul;
mod node;
mod recipe;
mod reduce;
mod rows;
#[cfg(test)]
mod tests;

pub use crate::array::Array;
pub use constant::evaluate_constant;
pub use error::EvalError;
pub use evaluator::Evaluator;
pub use frame::Rounding;
pub use recipe::evaluate_recipe;
