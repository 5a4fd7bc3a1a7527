//! Optimizations of the whole graph before fusion.

mod canonicalize;
mod cse;
mod dce;
mod editor;
mod fold;
mod merge_matmuls;
mod simplify;

pub use canonicalize::Canonicalize;
pub use cse::Cse;
pub use dce::{Dce, remove_dead};
pub use fold::Fold;
pub use merge_matmuls::MergeMatmuls;
