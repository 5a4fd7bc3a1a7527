//! Batches: from sequences' chunks to the bytes of a step's inputs.

mod buffers;
mod error;
mod role_map;

pub use buffers::{BatchBuffers, Chunk, ChunkRows, ChunkTokens, Sampling, StepView};
pub use error::RoleError;
pub use role_map::{InputRole, RoleMap};

#[cfg(test)]
mod tests;
