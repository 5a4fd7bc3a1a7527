//! Pass manager, optimizations, fusion, splitter, destination passing, buffer planner, plan checker.

pub mod check;
pub mod dedupe;
pub mod destination;
pub mod plan;
pub mod split;
