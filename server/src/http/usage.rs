//! What answers took.

use super::generation::Delta;
use serde::Serialize;

/// The tokens of all answers to a request: each prompt counts once, however many answers it has.
#[derive(Debug)]
pub(crate) struct UsageSum {
    prompts: Vec<u64>,
    /// Of each prompt, what its first answer found in the cache.
    cached: Vec<u64>,
    /// Of each answer.
    generated: Vec<u64>,
    choices: usize,
}

/// The tokens as OpenAI shows them.
#[derive(Debug, Serialize)]
pub(crate) struct UsageReport {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

impl UsageSum {
    pub(crate) fn new(prompts: impl Iterator<Item = usize>, choices: usize) -> Self {
        let prompts = Vec::from_iter(prompts.map(|ids| ids as u64));
        let (cached, generated) = (vec![0; prompts.len()], vec![0; prompts.len() * choices]);
        Self { prompts, cached, generated, choices }
    }

    /// Over all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().sum::<u64>() as usize
    }

    /// Over all prompts: each has as many as the client asks for.
    pub(crate) fn answers(&self) -> usize {
        self.generated.len()
    }

    /// What the prompts' first answers found in the cache, over all prompts.
    pub(crate) fn cached_tokens(&self) -> u64 {
        self.cached.iter().sum()
    }

    /// Over all answers.
    pub(crate) fn generated_tokens(&self) -> u64 {
        self.generated.iter().sum()
    }

    /// Adds what came of an answer.
    pub(crate) fn add(&mut self, delta: &Delta) {
        self.generated[delta.index] += delta.ids.len() as u64;
        let Some(end) = &delta.end else { return };
        if delta.index.is_multiple_of(self.choices) {
            self.cached[delta.index / self.choices] = end.usage.cached;
        }
    }

    pub(crate) fn report(&self) -> UsageReport {
        let details = PromptDetails { cached_tokens: self.cached_tokens() };
        UsageReport {
            prompt_tokens_details: Some(details),
            ..UsageReport::of(self.prompts.iter().sum(), self.generated_tokens())
        }
    }

    /// What one answer has taken so far, as vLLM shows it in each event.
    pub(crate) fn so_far(&self, index: usize) -> UsageReport {
        UsageReport::of(self.prompts[index / self.choices], self.generated[index])
    }
}

impl UsageReport {
    fn of(prompt: u64, generated: u64) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: generated,
            total_tokens: prompt + generated,
            prompt_tokens_details: None,
        }
    }
}
