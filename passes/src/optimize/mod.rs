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

use crate::manager::Registry;

/// Adds the passes of this module.
pub(crate) fn register(registry: &mut Registry) {
    registry.add("canonicalize", &[], |_| Ok(Box::new(Canonicalize)));
    registry.add("fold", &[], |_| Ok(Box::new(Fold)));
    registry.add("merge_matmuls", &[], |_| Ok(Box::new(MergeMatmuls)));
    registry.add("cse", &[], |_| Ok(Box::new(Cse)));
    registry.add("dce", &[], |_| Ok(Box::new(Dce)));
}
