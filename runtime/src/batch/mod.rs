//! Batches: from sequences' chunks to the bytes of a step's inputs.

mod buffers;
mod error;
mod feedback;
mod probe;
mod role_map;
mod synthetic;

pub use buffers::{BatchBuffers, BatchStep, Chunk, ChunkRows, ChunkTokens, StepView};
pub use error::RoleError;
pub use piecewise_kernels::inputs::{FollowingIds, TokenValues};
pub use piecewise_kernels::sampling::{SampleControls, Sampling};
pub(crate) use probe::made_up;
pub use probe::{Probe, ProbeStep, probes, row_probe, step_of_ids};
pub use role_map::{BoundInput, RoleMap};
pub use synthetic::{SyntheticStep, full_steps};

#[cfg(test)]
mod tests;
