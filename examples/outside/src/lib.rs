//! A decoder of no known family, with an op and a pass of its own: what the commands of piecewise are
//! told of it.

pub mod doubling;
pub mod gated;
pub mod model;

use piecewise::prelude::*;

/// The model under its `model_type`, the op, and the pass with its place among the others.
pub fn registries() -> Registries {
    Registries::standard()
        .model("outside", model::Outside::read)
        .ops(gated::GatedLinearAttention::registry())
        .pass_after("canonicalize", "doubling", &[], |_| Ok(Box::new(doubling::Doubling)))
}
