//! Staging: what a step uses of its inputs goes to the device in few copies, its outputs come back
//! in another, through one of two host blocks each, which an event at the end of the step guards.

mod blocks;
mod copies;
mod inputs;

pub(super) use blocks::ReadOutput;
pub(crate) use blocks::{BLOCKS, Filling, Staging};
pub(crate) use inputs::GivenInputs;
