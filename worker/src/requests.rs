//! From a request of the front end to one of the engine.

use crate::wire::{Added, SamplingParams};
use piecewise_runtime::batch::Sampling;
use piecewise_runtime::engine::Request;
use piecewise_server::structured::{Restraint, Structure};
use serde_json::{Map, Value};
use std::hash::BuildHasher;
use std::sync::Arc;

/// What the engine is asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    /// What the reply keeps to.
    pub(crate) structure: Option<Structure>,
    /// Whether the prompt has ended the thoughts, where the front end says so.
    pub(crate) reasoning_ended: Option<bool>,
    /// What it asks of the ids of the reply besides.
    pub(crate) restraint: Option<Restraint>,
    pub(crate) eos: Option<u32>,
    /// Ids to stop at that the request itself names.
    pub(crate) stop_ids: Vec<u32>,
}

impl Asked {
    /// Turns a request into what it asks of the engine.
    ///
    /// # Errors
    /// What it asks that can't be done, by its name.
    pub(crate) fn of(added: Added) -> Result<Self, String> {
        refuse(&[
            ("mm_features", added.mm_features.is_some(), "images and other media"),
            ("pooling_params", added.pooling_params.is_some(), "embeddings"),
            ("lora_request", added.lora_request.is_some(), "adapters"),
            ("prompt_embeds", added.prompt_embeds.is_some(), "rows for tokens"),
            ("prompt_is_token_ids", added.prompt_is_token_ids.is_some(), "rows for tokens"),
            ("resumable", added.resumable, "prompts that come piece by piece"),
        ])?;
        let sampling = added.sampling.ok_or("sampling_params: it has none")?;
        sampling.refuse()?;
        let restraint = sampling.restraint()?;
        let prompt = added.prompt.ok_or("prompt_token_ids: it has none")?;
        let structure = sampling.structured_outputs.as_ref().map(structure).transpose()?.flatten();
        if let Some(headers) = &added.trace_headers {
            tracing::debug!(target: "piecewise::access", request = added.id, ?headers);
        }
        let SamplingParams { eos_token_id: eos, stop_token_ids: stop_ids, .. } = sampling;
        let counted = |name: &str, count: Option<i64>| {
            let count = count.map(u32::try_from).transpose();
            count.map_err(|_| format!("{name}: those of every id are not supported"))
        };
        let logprobs = counted("logprobs", sampling.logprobs)?;
        let prompt_logprobs = counted("prompt_logprobs", sampling.prompt_logprobs)?;
        let request = Request {
            stop_ids: eos.into_iter().chain(stop_ids.iter().copied()).collect(),
            sampling: Sampling {
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: u32::try_from(sampling.top_k).unwrap_or(0),
                min_p: sampling.min_p,
                presence_penalty: sampling.presence_penalty,
                frequency_penalty: sampling.frequency_penalty,
                repetition_penalty: sampling.repetition_penalty,
                seed: sampling.seed.map_or_else(random, |seed| seed as u64),
            },
            logit_bias: sampling.logit_bias.unwrap_or_default().into_iter().collect(),
            logprobs,
            prompt_logprobs,
            priority: added.priority,
            cache_salt: added.cache_salt.map(Arc::from),
            ..Request::new(prompt, sampling.max_tokens)
        };
        let reasoning_ended = added.reasoning_ended;
        Ok(Self { request, structure, reasoning_ended, restraint, eos, stop_ids })
    }
}

impl SamplingParams {
    fn refuse(&self) -> Result<(), String> {
        refuse(&[
            ("thinking_token_budget", self.thinking_token_budget.is_some(), "bounds of thoughts"),
            (
                "prompt_logprob_token_ids",
                self.prompt_logprob_token_ids.is_some() || self.prompt_logprob_start.is_some(),
                "log-probabilities of prompts by id",
            ),
            ("repetition_detection", self.repetition_detection.is_some(), "ends at repetitions"),
            ("logprob_token_ids", self.logprob_token_ids.is_some(), "log-probabilities by id"),
            (
                "skip_reading_prefix_cache",
                // The engine passes over it by itself for a prompt's log-probabilities.
                self.skip_reading_prefix_cache == Some(true) && self.prompt_logprobs.is_none(),
                "passing over the prefix cache",
            ),
            ("vllm_xargs", self.extra_args.is_some(), "arguments of extensions"),
        ])
    }

    /// What it asks of the ids of the reply; nothing, as a rule.
    fn restraint(&self) -> Result<Option<Restraint>, String> {
        let Self { min_tokens, max_tokens, .. } = *self;
        if min_tokens > max_tokens {
            return Err(format!(
                "min_tokens: {min_tokens} are more than the {max_tokens} of max_tokens"
            ));
        }
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return Err("allowed_token_ids: must be some ids".to_owned());
        }
        if self.bad_words_token_ids.iter().flatten().any(Vec::is_empty) {
            return Err("_bad_words_token_ids: a word of no ids".to_owned());
        }
        let restraint = Restraint {
            allowed: self.allowed_token_ids.clone().unwrap_or_default().into(),
            bad: self.bad_words_token_ids.clone().unwrap_or_default().into(),
            ends: match min_tokens {
                0 => Arc::default(),
                _ => {
                    let named = self.eos_token_id.iter().chain(&self.stop_token_ids);
                    named.chain(&self.all_stop_token_ids).copied().collect()
                }
            },
            least: usize::try_from(min_tokens).unwrap_or(usize::MAX),
        };
        Ok((restraint != Restraint::default()).then_some(restraint))
    }
}

fn refuse(fields: &[(&str, bool, &str)]) -> Result<(), String> {
    match fields.iter().find(|(_, is_asked, _)| *is_asked) {
        Some((name, _, what)) => Err(format!("{name}: not supported by this worker ({what})")),
        None => Ok(()),
    }
}

/// What a reply keeps to, as the front end writes it.
fn structure(fields: &Map<String, Value>) -> Result<Option<Structure>, String> {
    let mut fields = fields.clone();
    let backend = fields.remove("_backend");
    fields.remove("_backend_was_auto");
    let is_other = backend.as_ref().and_then(Value::as_str).is_some_and(|name| name != "guidance");
    if is_other && fields.get("grammar").is_some_and(|grammar| !grammar.is_null()) {
        return Err("structured_outputs.grammar: it is checked as another dialect than this \
                    worker reads; start the front end with \
                    --structured-outputs-config '{\"backend\": \"guidance\"}'"
            .to_owned());
    }
    let mut request = Map::new();
    request.insert("structured_outputs".to_owned(), Value::Object(fields));
    let found = Structure::read(&request).map_err(|error| error.to_string())?;
    Ok(found.map(|(_, structure)| structure))
}

/// A seed that no other request has.
fn random() -> u64 {
    std::hash::RandomState::new().hash_one(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(sampling: &Value) -> Result<Asked, String> {
        let request = json!(["r", [1, 2], null, sampling, null, 1.0, null, null, null]);
        Asked::of(Added::read(&rmp_serde::to_vec(&request).unwrap()).unwrap())
    }

    #[test]
    fn what_a_request_asks_comes_to_the_engine() {
        let sampling = json!({
            "temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "seed": -3, "max_tokens": 9,
            "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2,
            "stop_token_ids": [7, 8], "_eos_token_id": 2, "logprobs": 3,
        });
        let Asked { request, structure, restraint, eos, stop_ids, .. } = asked(&sampling).unwrap();
        assert_eq!(restraint, None);
        assert_eq!(
            (request.stop_ids.to_vec(), eos, stop_ids),
            (vec![2, 7, 8], Some(2), vec![7, 8])
        );
        assert_eq!((request.max_tokens, request.logprobs, structure), (9, Some(3), None));
        let sampling = request.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.5, 4, 0.9));
        assert_eq!((sampling.min_p, sampling.seed), (0.1, -3_i64 as u64));
        assert_eq!(
            (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty),
            (1.0, 0.5, 1.2)
        );
    }

    #[test]
    fn what_a_reply_may_not_say_or_not_yet_is_its_restraint() {
        let sampling = json!({
            "min_tokens": 3, "max_tokens": 9, "allowed_token_ids": [1, 2, 3],
            "_bad_words_token_ids": [[1], [2, 3]], "stop_token_ids": [7], "_eos_token_id": 2,
            "_all_stop_token_ids": [7, 8],
        });
        let restraint = asked(&sampling).unwrap().restraint.unwrap();
        assert_eq!(restraint.allowed[..], [1, 2, 3]);
        assert_eq!(*restraint.bad, [vec![1], vec![2, 3]]);
        assert_eq!((restraint.ends.to_vec(), restraint.least), (vec![2, 7, 7, 8], 3));
        let alone = asked(&json!({"_bad_words_token_ids": [[4]], "stop_token_ids": [7]})).unwrap();
        assert!(alone.restraint.unwrap().ends.is_empty(), "it may end at any time");
    }

    /// By vLLM's positions, so that none is taken for its neighbour.
    #[test]
    fn each_field_of_a_request_is_refused_by_its_name_or_served() {
        let with = |fields: &[(usize, Value)]| {
            let mut request = json!(["r", [1, 2], null, {}, null, 1.0, null, null, null]);
            let request_fields = request.as_array_mut().unwrap();
            for (index, value) in fields {
                let length = request_fields.len().max(index + 1);
                // Those between have their defaults.
                let default = |index| match index {
                    11..=13 => json!(0),
                    15 | 19 => json!(false),
                    _ => Value::Null,
                };
                request_fields.extend((request_fields.len()..length).map(default));
                request_fields[*index] = value.clone();
            }
            Asked::of(Added::read(&rmp_serde::to_vec(&request).unwrap()).unwrap())
        };
        let structured = (3, json!({"structured_outputs": {"regex": "a+"}}));
        for (name, fields) in [
            ("prompt_token_ids", vec![(1, Value::Null)]),
            ("mm_features", vec![(2, json!([{}]))]),
            ("sampling_params", vec![(3, Value::Null)]),
            ("pooling_params", vec![(4, json!({"task": "embed"}))]),
            ("lora_request", vec![(6, json!({"lora_name": "a"}))]),
            ("prompt_embeds", vec![(9, json!(["<f4", [2, 8], 1]))]),
            ("prompt_is_token_ids", vec![(10, json!([true, false]))]),
            ("resumable", vec![(15, json!(true))]),
        ] {
            let error = with(&fields).unwrap_err();
            assert!(error.starts_with(&format!("{name}: ")), "{name}: {error}");
        }
        for fields in [
            vec![(8, json!(1))],
            vec![(11, json!(1))],
            vec![(12, json!(7))],
            vec![(14, json!({"traceparent": "00-1-2-01"}))],
            vec![(16, json!("cmpl-r"))],
            vec![(17, json!(false))],
            vec![structured.clone(), (17, json!(true))],
            vec![structured.clone(), (17, json!(false))],
            vec![(18, json!({"a": 1}))],
            vec![(20, json!("session"))],
            vec![(21, json!({"a": 1}))],
        ] {
            with(&fields).unwrap_or_else(|error| panic!("{fields:?}: {error}"));
        }
        assert_eq!(with(&[(13, json!(-4))]).unwrap().request.priority, -4);
        let salted = with(&[(7, json!("pepper"))]).unwrap().request;
        assert_eq!(salted.cache_salt.as_deref(), Some("pepper"));
        for ended in [None, Some(true), Some(false)] {
            let asked = with(&[structured.clone(), (17, json!(ended))]).unwrap();
            assert_eq!(asked.reasoning_ended, ended);
        }
    }

    #[test]
    fn what_can_not_be_done_is_refused_by_name() {
        for (name, sampling) in [
            ("min_tokens", json!({"min_tokens": 17, "max_tokens": 16})),
            ("prompt_logprobs", json!({"prompt_logprobs": -1})),
            ("prompt_logprob_token_ids", json!({"prompt_logprob_token_ids": [[1]]})),
            ("prompt_logprob_token_ids", json!({"prompt_logprob_start": 2})),
            ("allowed_token_ids", json!({"allowed_token_ids": []})),
            ("_bad_words_token_ids", json!({"_bad_words_token_ids": [[]]})),
            ("logprob_token_ids", json!({"logprob_token_ids": [1]})),
            ("logprobs", json!({"logprobs": -1})),
            ("repetition_detection", json!({"repetition_detection": {"min_count": 2}})),
            ("thinking_token_budget", json!({"thinking_token_budget": 5})),
            ("skip_reading_prefix_cache", json!({"skip_reading_prefix_cache": true})),
            ("vllm_xargs", json!({"extra_args": {"a": 1}})),
            ("structural_tag", json!({"structured_outputs": {"structural_tag": "{}"}})),
            (
                "structured_outputs.grammar",
                json!({"structured_outputs": {"grammar": "root ::= 1", "_backend": "xgrammar"}}),
            ),
        ] {
            let error = asked(&sampling).unwrap_err();
            assert!(error.contains(name), "{name}: {error}");
        }
        let regex = json!({"structured_outputs": {"regex": "a+", "_backend": "xgrammar"}});
        let structure = asked(&regex).unwrap().structure;
        assert_eq!(structure, Some(Structure::Regex("a+".to_owned())));
    }
}
