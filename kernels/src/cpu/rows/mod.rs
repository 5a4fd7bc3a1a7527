//! Row programs run: tiles of rows, each a pass over the steps, line by line.

mod elementwise;
mod execute;
mod line;
mod reduce;
mod tables;
pub(super) mod transcendental;
mod walk;

pub use execute::{RowArg, RowCall, run_rows};
