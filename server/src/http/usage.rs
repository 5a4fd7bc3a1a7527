//! What answers took.

use piecewise_runtime::engine::Usage;
use serde_json::{Value, json};

/// The tokens of all answers to a request: each prompt counts once, however many answers it has.
#[derive(Debug)]
pub(crate) struct UsageSum {
    prompt: u64,
    /// Of each prompt, what its first answer found in the cache.
    cached: Vec<u64>,
    generated: u64,
    choices: usize,
}

impl UsageSum {
    pub(crate) fn new(prompts: impl ExactSizeIterator<Item = usize>, choices: usize) -> Self {
        let cached = vec![0; prompts.len()];
        Self { prompt: prompts.map(|ids| ids as u64).sum(), cached, generated: 0, choices }
    }

    /// An answer of this number has ended.
    pub(crate) fn add(&mut self, index: usize, usage: Usage) {
        self.generated += usage.generated;
        if index.is_multiple_of(self.choices) {
            self.cached[index / self.choices] = usage.cached;
        }
    }

    pub(crate) fn json(&self) -> Value {
        let Self { prompt, generated, cached, .. } = self;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached.iter().sum::<u64>()},
        })
    }
}
