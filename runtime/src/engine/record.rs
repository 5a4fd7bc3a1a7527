//! What is said about each step.

use crate::mode::StepMode;
use std::time::Duration;

/// One step that was read back: a line of the iteration log.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct StepRecord {
    /// Tokens of prompts, and of sequences that are computed again.
    pub context_tokens: u64,
    /// Sequences that brought the one token sampled last.
    pub generation_requests: u64,
    /// Sequences, those of prompts among them.
    pub sequences: u64,
    /// Rows that wanted logits.
    pub rows: u64,
    /// All tokens.
    pub tokens: u64,
    /// Tokens of each sequence, where no prompt is among them.
    pub query_length: Option<u64>,
    /// How it ran.
    pub mode: StepMode,
    /// The size that it ran at: sequences where there is a query length, tokens elsewhere;
    /// `None` where it ran at its count.
    pub size: Option<u64>,
    /// Why it was launched although its mode would replay.
    pub fallback: Option<&'static str>,
    /// From its submit, or the end of the step before where that came later, to its end.
    pub wall: Duration,
}

/// Is called with every step.
pub type StepObserver = Box<dyn FnMut(&StepRecord) + Send>;
