//! What answers took.

use super::generation::Delta;
use serde::Serialize;

/// The tokens of all answers to a request: each prompt counts once, however many answers it has.
#[derive(Debug)]
pub(crate) struct UsageSum {
    prompt: u64,
    /// Of each prompt, what its first answer found in the cache.
    cached: Vec<u64>,
    generated: u64,
    choices: usize,
}

/// The tokens as OpenAI shows them.
#[derive(Debug, Serialize)]
pub(crate) struct UsageReport {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

impl UsageSum {
    pub(crate) fn new(prompts: impl ExactSizeIterator<Item = usize>, choices: usize) -> Self {
        let cached = vec![0; prompts.len()];
        Self { prompt: prompts.map(|ids| ids as u64).sum(), cached, generated: 0, choices }
    }

    /// Over all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt as usize
    }

    /// Adds what an answer took, where it has ended.
    pub(crate) fn add(&mut self, delta: &Delta) {
        let Some(end) = &delta.end else { return };
        self.generated += end.usage.generated;
        if delta.index.is_multiple_of(self.choices) {
            self.cached[delta.index / self.choices] = end.usage.cached;
        }
    }

    pub(crate) fn report(&self) -> UsageReport {
        let Self { prompt, generated, .. } = *self;
        UsageReport {
            prompt_tokens: prompt,
            completion_tokens: generated,
            total_tokens: prompt + generated,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached.iter().sum() },
        }
    }
}
