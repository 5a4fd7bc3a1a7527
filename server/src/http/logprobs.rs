//! Log-probabilities as OpenAI shows them.

use super::error::ApiError;
use super::generation::TokenEntry;
use piecewise::models::Vocabulary;
use piecewise_runtime::engine::TokenLogprobs;
use serde::{Serialize, Serializer};

/// How many log-probabilities so many tokens have, with so many of the likeliest ids beside each.
pub(crate) fn count(tokens: u64, top: Option<u32>) -> u64 {
    top.map_or(0, |top| tokens.saturating_mul(u64::from(top) + 1))
}

/// Refuses more log-probabilities than a request may ask for.
pub(crate) fn bounded(count: u64, most: usize) -> Result<usize, ApiError> {
    let fits = usize::try_from(count).ok().filter(|count| *count <= most);
    fits.ok_or_else(|| {
        let why = format!(
            "asks for {count} in all, each of the likeliest ids counted, and at most {most} are taken \
             (--max-logprobs)"
        );
        ApiError::field("logprobs", why)
    })
}

/// An object of names with values.
#[derive(Debug)]
struct Named<K, V>(Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Named<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Those of an answer of `/v1/completions`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Named<String, f32>>>,
}

impl CompletionLogprobs {
    pub(crate) fn push(&mut self, entry: &TokenEntry, spell: impl Fn(u32) -> String) {
        let TokenEntry { id, offset, logprobs } = entry;
        let spelled = spell(*id);
        self.text_offset.push(*offset);
        self.token_logprobs.push(logprobs.as_ref().map(|logprobs| logprobs.logprob));
        self.top_logprobs.push(logprobs.as_ref().map(|logprobs| {
            let mut top = vec![(spelled.clone(), logprobs.logprob)];
            for &(other, logprob) in &logprobs.top {
                let other = spell(other);
                if top.iter().all(|(name, _)| *name != other) {
                    top.push((other, logprob));
                }
            }
            Named(top)
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
pub(crate) struct PromptLogprobs(Vec<Option<Named<u32, Told>>>);

/// What is told of an id.
#[derive(Debug, Serialize)]
struct Told {
    logprob: f32,
    rank: u32,
    decoded_token: String,
}

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
        let told = |id, logprob: f32, rank: u32| {
            (id, Told { logprob, rank, decoded_token: spell(vocabulary, id) })
        };
        let others = (1..=most).zip(&logprobs.top).filter(|(_, (other, _))| *other != id);
        let others = others.map(|(rank, &(other, logprob))| told(other, logprob, rank));
        let own = told(id, logprobs.logprob, logprobs.rank);
        self.0.push(Some(Named(std::iter::once(own).chain(others).collect())));
    }
}
