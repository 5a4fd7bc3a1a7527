//! Random values for all that a graph declares: what a graph is tried with where nobody says what it
//! reads.

mod arrays;
mod rng;

pub use arrays::{RandomArrays, random_arrays, random_weight};
pub use rng::Rng;
