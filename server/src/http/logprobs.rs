//! Log-probabilities as OpenAI shows them.

use super::generation::TokenEntry;
use piecewise::models::Vocabulary;
use piecewise_runtime::engine::TokenLogprobs;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Those of an answer of `/v1/completions`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

impl CompletionLogprobs {
    pub(crate) fn push(&mut self, entry: &TokenEntry, spell: impl Fn(u32) -> String) {
        let TokenEntry { id, offset, logprobs } = entry;
        let spelled = spell(*id);
        self.text_offset.push(*offset);
        self.token_logprobs.push(logprobs.as_ref().map(|logprobs| logprobs.logprob));
        self.top_logprobs.push(logprobs.as_ref().map(|logprobs| {
            let mut top = Map::new();
            top.insert(spelled.clone(), logprobs.logprob.into());
            for &(other, logprob) in &logprobs.top {
                top.entry(spell(other)).or_insert_with(|| logprob.into());
            }
            top
        }));
        self.tokens.push(spelled);
    }
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
            logprob,
            bytes: vocabulary.map(|vocabulary| vocabulary.bytes(id).to_vec()),
        };
        let TokenEntry { id, logprobs, .. } = entry;
        let Some(logprobs) = logprobs else { return };
        let top = logprobs.top.iter().map(|&(id, logprob)| likely(id, logprob));
        let top_logprobs = top.collect();
        self.content.push(ChatToken { token: likely(*id, logprobs.logprob), top_logprobs });
    }
}

/// Those of a prompt's tokens as vLLM shows them: by id, the token's own and the likeliest; none of
/// the first token.
#[derive(Debug, Serialize)]
pub(crate) struct PromptLogprobs(Vec<Option<Map<String, Value>>>);

impl PromptLogprobs {
    pub(crate) fn begun() -> Self {
        Self(vec![None])
    }

    /// Adds a token, with at most `most` of the likeliest.
    pub(crate) fn push(
        &mut self,
        id: u32,
        logprobs: &TokenLogprobs,
        most: u32,
        vocabulary: Option<&Vocabulary>,
    ) {
        let shown = |id, logprob: f32, rank: u32| json!({"logprob": logprob, "rank": rank, "decoded_token": spell(vocabulary, id)});
        let mut all = Map::new();
        all.insert(id.to_string(), shown(id, logprobs.logprob, logprobs.rank));
        for (rank, &(other, logprob)) in (1..=most).zip(&logprobs.top) {
            all.entry(other.to_string()).or_insert_with(|| shown(other, logprob, rank));
        }
        self.0.push(Some(all));
    }
}
