//! What comes of a request's answers, counted for its client and noted for the log.

use super::course::Course;
use super::error::ApiError;
use super::generation::{Delta, Generation};
use super::usage::UsageSum;
use std::task::{Context, Poll};

/// Pieces of answers as they come, and what they took so far.
#[derive(Debug)]
pub(crate) struct Deltas {
    generation: Generation,
    course: Course,
    usage: UsageSum,
}

impl Deltas {
    /// Of `generation`, with so many answers to each of the prompts of these lengths.
    pub(crate) fn new(
        generation: Generation,
        prompts: impl Iterator<Item = usize>,
        choices: usize,
    ) -> Self {
        let usage = UsageSum::new(prompts, choices);
        Self { generation, course: Course::new(usage.prompt_tokens(), usage.answers()), usage }
    }

    /// As [`Generation::poll_ready`].
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ApiError>> {
        self.generation.poll_ready(context)
    }

    /// As [`Generation::take`].
    pub(crate) fn take(&mut self) -> Result<Option<Delta>, ApiError> {
        let delta = self.generation.take()?;
        if let Some(delta) = &delta {
            self.course.note(delta);
            self.usage.add(delta);
        }
        Ok(delta)
    }

    pub(crate) fn usage(&self) -> &UsageSum {
        &self.usage
    }
}
