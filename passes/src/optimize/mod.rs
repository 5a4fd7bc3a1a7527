//! Optimizations of the whole graph before fusion.

mod canonical;
mod cse;
mod dce;
mod fold;
mod merge_matmuls;

pub(crate) use canonical::CANONICAL;
pub use cse::Cse;
pub use dce::{Dce, remove_dead};
pub use fold::Fold;
pub use merge_matmuls::MergeMatmuls;
