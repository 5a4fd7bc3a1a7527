//! A small model on a small device, for the crate's own tests: a sampled id is a hash of the ids
//! before it, so that anything misplaced, stale or poisoned changes the text.

mod compiler;
mod device;
mod faults;
mod graph;
mod measured;
mod model;
mod ops;
mod planted;
mod program;

pub(crate) use compiler::FakeCompiler;
pub(crate) use device::FakeDevice;
pub(crate) use faults::Faults;
pub(crate) use graph::{Bounds, VOCAB, fake_graph, fake_module};
pub(crate) use model::Setup;
pub(crate) use ops::next_id;
pub(crate) use planted::{ALGORITHMS, Planted};
pub(crate) use program::FakeProgram;
