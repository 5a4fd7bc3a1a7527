//! What became of a request that generates, for the log.

use super::access::milliseconds;
use super::generation::Delta;
use std::time::Instant;
use tracing::Span;

/// The course of a request's answers. Dropped, it is logged, within the span of the request: by then
/// they have ended, or their client has gone.
#[derive(Debug)]
pub(crate) struct Course {
    span: Span,
    begun: Instant,
    first: Option<Instant>,
    prompt: usize,
    cached: u64,
    generated: usize,
    /// Answers that have not ended.
    open: usize,
    reason: &'static str,
}

impl Course {
    /// Of the request that the current span is of: `prompt` ids in all, and so many answers.
    pub(crate) fn new(prompt: usize, answers: usize) -> Self {
        Self {
            span: Span::current(),
            begun: Instant::now(),
            first: None,
            prompt,
            cached: 0,
            generated: 0,
            open: answers,
            reason: "",
        }
    }

    /// Counts the ids of `delta`, and when they came.
    pub(crate) fn note(&mut self, delta: &Delta) {
        if !delta.ids.is_empty() {
            self.first.get_or_insert_with(Instant::now);
            self.generated += delta.ids.len();
        }
        if let Some(end) = &delta.end {
            self.open -= 1;
            self.cached += end.usage.cached;
            self.reason = end.reason;
        }
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let milliseconds = |until: Instant| milliseconds(until - self.begun);
        let _within = self.span.enter();
        tracing::info!(
            target: "piecewise::access",
            prompt_tokens = self.prompt,
            cached_tokens = self.cached,
            tokens = self.generated,
            first_token_milliseconds = self.first.map(milliseconds),
            milliseconds = milliseconds(Instant::now()),
            "{}",
            if self.open > 0 { "left" } else { self.reason },
        );
    }
}
