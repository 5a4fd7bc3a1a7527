//! The types that contain each other: a graph has ops and recipes, ops have regions, and regions
//! and recipes have graphs.

pub mod graph;
pub mod op;
mod recipe_type;
pub mod region;
pub mod weight;
