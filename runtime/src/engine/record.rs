//! What is said about each step.

use crate::mode::StepMode;
use std::time::Duration;

/// One step that was read back. As JSON it is a line of the iteration log that the capture planner
/// reads.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<&'static str>,
    /// From its submit, or the end of the step before where that came later, to its end.
    #[serde(rename = "wall_us", serialize_with = "microseconds")]
    pub wall: Duration,
}

fn microseconds<S: serde::Serializer>(wall: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(wall.as_secs_f64() * 1e6)
}

/// Is called with every step.
pub type StepObserver = Box<dyn FnMut(&StepRecord) + Send>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line_of_the_iteration_log() {
        let record = StepRecord {
            context_tokens: 0,
            generation_requests: 12,
            sequences: 12,
            rows: 12,
            tokens: 12,
            query_length: Some(1),
            mode: StepMode::Full,
            size: Some(16),
            fallback: None,
            wall: Duration::from_micros(512),
        };
        assert_eq!(
            serde_json::to_string(&record).unwrap(),
            "{\"context_tokens\":0,\"generation_requests\":12,\"sequences\":12,\"rows\":12,\
             \"tokens\":12,\"query_length\":1,\"mode\":\"full\",\"size\":16,\"wall_us\":512.0}"
        );
    }
}
