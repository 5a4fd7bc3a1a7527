//! Log-probabilities as OpenAI shows them.

use super::generation::TokenEntry;
use piecewise::models::Vocabulary;
use serde::Serialize;
use serde_json::{Map, Value};

/// Those of an answer of `/v1/completions`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<f32>,
    tokens: Vec<String>,
    top_logprobs: Vec<Map<String, Value>>,
}

impl CompletionLogprobs {
    pub(crate) fn push(&mut self, entry: &TokenEntry, spell: impl Fn(u32) -> String) {
        let TokenEntry { id, offset, logprobs } = entry;
        let spelled = spell(*id);
        let mut top = Map::new();
        top.insert(spelled.clone(), finite(logprobs.logprob).into());
        for &(other, logprob) in &logprobs.top {
            top.entry(spell(other)).or_insert_with(|| finite(logprob).into());
        }
        self.text_offset.push(*offset);
        self.token_logprobs.push(finite(logprobs.logprob));
        self.tokens.push(spelled);
        self.top_logprobs.push(top);
    }
}

/// JSON has no infinity: what can't be drawn has the number that OpenAI gives it.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// A token for people; bytes that are no characters of their own as OpenAI shows them.
pub(crate) fn spell(vocabulary: Option<&Vocabulary>, id: u32) -> String {
    let Some(vocabulary) = vocabulary else { return format!("token_id:{id}") };
    let bytes = vocabulary.bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{bytes}")
        }
    }
}
