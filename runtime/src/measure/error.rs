//! What can go wrong while steps are measured.

use crate::memory::PoolFull;
use crate::words::{FillError, ModelError};
use piecewise_backend::device::DeviceError;

/// Why a model could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum MeasureError {
    /// The model could not be built, or a step failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A clock or a wait failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An input of a step could not be filled.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// The steps need more pages than there are.
    #[error(transparent)]
    Pool(#[from] PoolFull),
    /// The graph samples nothing, or does not take back what it sampled.
    #[error(
        "the graph lacks {what}: measured steps feed sampled ids back on the device, so it needs \
         an output of sampled ids, a state with the role \"sampled\" and an input with the role \
         \"tokens.feedback\""
    )]
    NoFeedback { what: &'static str },
    /// The device noted nothing of the blocks of a step's graph.
    #[error(
        "nothing was noted of blocks at {tokens} tokens: the step must replay as one graph, on a \
         CUDA device that was opened to note them"
    )]
    NoTimeline { tokens: u64 },
    /// A step that names a sequence, an entry or a position that there is not.
    #[error("measured step {step}: sequence {sequence} {reason}")]
    Plan {
        /// The step's number in its list.
        step: usize,
        sequence: usize,
        reason: String,
    },
}
