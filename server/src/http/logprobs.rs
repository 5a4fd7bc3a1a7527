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

/// Those of a reply of `/v1/chat/completions`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: Likely,
    top_logprobs: Vec<Likely>,
}

#[derive(Debug, Serialize)]
struct Likely {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
}

impl ChatLogprobs {
    pub(crate) fn push(&mut self, entry: &TokenEntry, vocabulary: Option<&Vocabulary>) {
        let likely = |id, logprob| Likely {
            token: spell(vocabulary, id),
            logprob: finite(logprob),
            bytes: vocabulary.map(|vocabulary| vocabulary.bytes(id).to_vec()),
        };
        let TokenEntry { id, logprobs, .. } = entry;
        let top = logprobs.top.iter().map(|&(id, logprob)| likely(id, logprob));
        let top_logprobs = top.collect();
        self.content.push(ChatToken { token: likely(*id, logprobs.logprob), top_logprobs });
    }
}
