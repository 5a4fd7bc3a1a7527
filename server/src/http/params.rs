//! What both endpoints take about how tokens are chosen and when they end.

mod listed;

pub(crate) use listed::FIELDS;

use super::client::Client;
use super::error::ApiError;
use super::fields::{Fields, ids, whole};
use super::generation::Part;
use super::state::{Limits, Served, ServedModel, State, needed};
use crate::structured::{Restraint, Structure, Thoughts, Wanted};
use crate::text::{OutputText, StopStrings};
use piecewise_runtime::batch::Sampling;
use piecewise_runtime::engine::{MAX_LOGIT_BIASES, Request};
use serde_json::{Map, Value, json};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) choices: usize,
    pub(crate) stream: bool,
    pub(crate) stream_usage: StreamUsage,
    pub(crate) stops: StopStrings,
    /// Whether special tokens have text.
    pub(crate) special: bool,
    pub(crate) return_token_ids: bool,
    /// Whether log-probabilities name tokens by their ids.
    pub(crate) tokens_as_ids: bool,
    /// Of how many tokens prompts have the last alone; -1 is as many as there is room for.
    truncate: Option<i64>,
    /// Those of the client, and all that end an answer; the answers share them.
    pub(crate) named_stops: Arc<[u32]>,
    stop_ids: Arc<[u32]>,
    sampling: Sampling,
    pub(crate) max_tokens: Option<u64>,
    logit_bias: Arc<[(u32, f32)]>,
    pub(crate) client: Client,
    priority: i32,
    deadline: Option<Instant>,
    /// Whether the tokens of prompts come with log-probabilities, and of how many others.
    pub(crate) prompt_logprobs: Option<u32>,
    /// What answers keep to, and the field that says so.
    pub(crate) structure: Option<Arc<(String, Structure)>>,
    allowed: Arc<[u32]>,
    bad_words: Vec<String>,
    min_tokens: usize,
    /// Who shares the pages of prompts.
    cache_salt: Option<Arc<str>>,
}

/// Which events of a stream say what the answers took.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum StreamUsage {
    None,
    /// One at the end.
    Last,
    /// Each for its answer, and one at the end for all.
    Each,
}

/// Stop strings and bad words have so many bytes in the mean, at most.
const BYTES_OF_STRING: usize = 64;
/// The longest salt, in characters.
const LONGEST_SALT: usize = 1024;

/// What [`Structure::read`] reads.
const STRUCTURE_FIELDS: [&str; 7] = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_json_object",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

impl Params {
    /// Takes them out of the fields; what is left out is as the model has it, or as OpenAI does.
    pub(crate) fn take(
        fields: &mut Fields,
        model: &ServedModel,
        limits: &Limits,
    ) -> Result<Self, ApiError> {
        let ServedModel { defaults, end_ids, .. } = model;
        fields.ignore(&[
            "user",
            "metadata",
            "store",
            "safety_identifier",
            "prompt_cache_key",
            "service_tier",
            "prompt_cache_retention",
            "request_id",
        ]);
        fields.refuse(&[
            ("use_beam_search", json!(false), "sample or take the likeliest tokens"),
            ("truncation_side", json!("left"), "the last tokens stay, by `truncate_prompt_tokens`"),
            ("kv_transfer_params", Value::Null, "prompts are computed where they are answered"),
            ("mm_processor_kwargs", Value::Null, "prompts are texts and ids"),
            ("prompt_embeds", Value::Null, "prompts are texts and ids"),
            ("structural_tag", Value::Null, "use `structured_outputs`"),
            ("thinking_token_budget", Value::Null, "bound the whole answer by `max_tokens`"),
            ("vllm_xargs", Value::Null, "there are no extensions that would read them"),
            ("spaces_between_special_tokens", json!(true), "texts are as the tokenizer makes them"),
        ])?;
        fields.pass_within("stream_options", &STREAM_OPTIONS);
        fields.pass_within("structured_outputs", &Structure::OUTPUTS);
        let real = |value: Option<f64>, own: Option<f32>, usual: f32| {
            value.map_or(own.unwrap_or(usual), |value| value as f32)
        };
        let most = f64::from(f32::MAX);
        let stream = fields.flag("stream")?;
        let choices = fields.whole("n", 1, i64::MAX)?.unwrap_or(1) as usize;
        if choices > limits.choices {
            let message = format!("at most {} answers are given (--max-choices)", limits.choices);
            return Err(ApiError::field("n", message));
        }
        let best_of = fields.whole("best_of", 1, i64::MAX)?.map_or(choices, |best| best as usize);
        if best_of != choices {
            let instead = "ask for `n` answers and choose among them";
            return Err(ApiError::unsupported("best_of", instead));
        }
        let max_tokens = fields.whole("max_tokens", 1, i64::MAX)?.map(|tokens| tokens as u64);
        let top_k = fields.whole("top_k", -1, i64::from(i32::MAX))?;
        let seed = fields.whole("seed", i64::MIN, i64::MAX)?;
        let sampling = Sampling {
            temperature: real(fields.number("temperature", 0.0, 100.0)?, defaults.temperature, 1.0),
            top_p: real(fields.number("top_p", 0.0, 1.0)?, defaults.top_p, 1.0),
            top_k: top_k.map_or(defaults.top_k.unwrap_or(0), |k| k.max(0) as u32),
            min_p: real(fields.number("min_p", 0.0, 1.0)?, defaults.min_p, 0.0),
            presence_penalty: real(fields.number("presence_penalty", -2.0, 2.0)?, None, 0.0),
            frequency_penalty: real(fields.number("frequency_penalty", -2.0, 2.0)?, None, 0.0),
            repetition_penalty: real(
                fields.number("repetition_penalty", 0.0, most)?,
                defaults.repetition_penalty,
                1.0,
            ),
            seed: seed.map_or_else(random, |seed| seed as u64),
        };
        let priority = fields.whole("priority", i32::MIN.into(), i32::MAX.into())?;
        let client = fields.client().clone();
        let priority =
            client.priority(priority.map(|priority| priority as i32), limits.priorities)?;
        let patience = fields.number("deadline_seconds", 0.0, 1e9)?.map(Duration::from_secs_f64);
        let patience = [patience, limits.request_time].into_iter().flatten().min();
        let prompt_logprobs = match fields.take("prompt_logprobs") {
            None => None,
            Some(_) if stream => {
                return Err(ApiError::field("prompt_logprobs", "comes without `stream` alone"));
            }
            Some(value) => Some(top_logprobs("prompt_logprobs", &value)?),
        };
        let include_stop = fields.flag("include_stop_str_in_output")?;
        let allowed: Vec<u32> = match fields.take("allowed_token_ids") {
            None => Vec::new(),
            Some(Value::Array(list)) if !list.is_empty() => {
                let mut ids = ids("allowed_token_ids", &list)?;
                ids.sort_unstable();
                ids.dedup();
                ids
            }
            Some(_) => {
                return Err(ApiError::field("allowed_token_ids", "must be a list of some ids"));
            }
        };
        let min_tokens = fields.whole("min_tokens", 0, i64::MAX)?.unwrap_or(0) as u64;
        if max_tokens.is_some_and(|most| min_tokens > most) {
            return Err(ApiError::field("min_tokens", "must be at most `max_tokens`"));
        }
        fields.take_copies_of(&STRUCTURE_FIELDS)?;
        let structure = Structure::read(fields.object())?;
        fields.ignore(&STRUCTURE_FIELDS);
        let stop_ids: Vec<_> =
            fields.typed("stop_token_ids", "must be a list of ids")?.unwrap_or_default();
        if stop_ids.len() > limits.stop_ids {
            let (has, most) = (stop_ids.len(), limits.stop_ids);
            let message = format!("has {has} ids, and at most {most} are taken (--max-stop-ids)");
            return Err(ApiError::field("stop_token_ids", message));
        }
        let ends: &[u32] = if fields.flag("ignore_eos")? { &[] } else { end_ids };
        let asked = ids("stop_token_ids", &stop_ids)?;
        let stop_ids = [ends, &asked].concat().into();
        // Those that do not end an answer anyway.
        let named_stops = asked.into_iter().filter(|id| !ends.contains(id)).collect();
        let stops = StopStrings::new(strings(fields, "stop", limits)?, include_stop);
        Ok(Self {
            choices,
            stream,
            stream_usage: stream_usage(fields, stream)?,
            stops: stops.map_err(|error| ApiError::field("stop", error))?,
            special: !fields.flag_or("skip_special_tokens", true)?,
            return_token_ids: fields.flag("return_token_ids")?,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids")?,
            truncate: fields.whole("truncate_prompt_tokens", -1, i64::MAX)?,
            named_stops,
            stop_ids,
            sampling,
            max_tokens: max_tokens.or(defaults.max_new_tokens),
            logit_bias: logit_bias(fields)?.into(),
            client,
            priority,
            structure: structure.map(Arc::new),
            allowed: allowed.into(),
            bad_words: strings(fields, "bad_words", limits)?,
            min_tokens: usize::try_from(min_tokens).unwrap_or(usize::MAX),
            deadline: patience.map(|time| Instant::now() + time),
            prompt_logprobs,
            cache_salt: cache_salt(fields)?,
        })
    }

    /// Of how many tokens a prompt has the last alone, where a client asks for that.
    pub(crate) fn most(&self, served: &Served) -> Option<usize> {
        // One token follows them at least.
        let room = served.engine.options().max_seq_len.saturating_sub(1) as usize;
        self.truncate.map(|most| usize::try_from(most).map_or(room, |most| most.max(1)))
    }

    /// A request for the answer of this number to a prompt.
    pub(crate) fn request(&self, prompt: Arc<[u32]>, number: usize, max_tokens: u64) -> Request {
        Request {
            stop_ids: Arc::clone(&self.stop_ids),
            sampling: Sampling {
                seed: self.sampling.seed.wrapping_add(number as u64),
                ..self.sampling
            },
            logit_bias: Arc::clone(&self.logit_bias),
            priority: self.priority,
            client: self.client.of_engine(),
            deadline: self.deadline,
            prompt_logprobs: self.prompt_logprobs,
            cache_salt: self.cache_salt.clone(),
            ..Request::new(prompt, self.max_tokens.unwrap_or(max_tokens))
        }
    }

    /// What makes text of the ids of an answer; `special` is whether special tokens have text whatever the
    /// client says.
    pub(crate) fn output(
        &self,
        served: &Served,
        prompt_field: &str,
        prompt: &[u32],
        special: bool,
    ) -> Result<Option<OutputText>, ApiError> {
        let Some(tokenizer) = &served.tokenizer else {
            return match self.stops == StopStrings::default() {
                true => Ok(None),
                false => Err(ApiError::field("stop", "needs a tokenizer; use `stop_token_ids`")),
            };
        };
        let (stops, special) = (self.stops.clone(), special || self.special);
        let text = OutputText::new(Arc::clone(tokenizer), prompt, stops, special);
        text.map(Some).map_err(|error| ApiError::field(prompt_field, error))
    }

    /// Makes the parts keep to what is asked for of their structure, after the thoughts that they may
    /// begin with, and their ids, off the threads that others wait for.
    pub(crate) async fn constrain(
        &self,
        state: &Arc<State>,
        parts: &mut [Part],
        thoughts: Option<Thoughts>,
    ) -> Result<(), ApiError> {
        let restrains =
            !self.allowed.is_empty() || !self.bad_words.is_empty() || self.min_tokens > 0;
        if self.structure.is_none() && !restrains {
            return Ok(());
        }
        let (shared, params, count) = (Arc::clone(state), self.clone(), parts.len());
        let make = move |wanted: Wanted<'_>| {
            let served = shared.served()?;
            let bad = params.bad_ids(served)?;
            let vocabulary = served.engine.options().vocab;
            let structure = params.structure.as_deref().map(|(field, structure)| {
                let none = || ApiError::field(field, "this model has no tokenizer");
                let structures = served.structures.as_ref().ok_or_else(none)?;
                Ok::<_, ApiError>(structures.constraint(structure, field, thoughts, wanted)?)
            });
            let structure = structure.transpose()?;
            let restraint = || Restraint {
                allowed: params.allowed,
                bad: bad.into(),
                ends: params.stop_ids,
                least: params.min_tokens,
            };
            let made = match restrains {
                true => Some(restraint().over(structure, vocabulary)),
                false => structure,
            };
            Ok::<_, ApiError>(vec![made; count])
        };
        // Texts are read beside, however many structures there are.
        let turns = match self.structure.is_some() {
            true => &state.structure_turns,
            false => &state.small_turns,
        };
        let made = turns.run(&self.client, make).await?;
        parts.iter_mut().zip(made).for_each(|(part, made)| part.request.constraint = made);
        Ok(())
    }

    /// The ids of the bad words, at the start of a text and behind a space; a check of the ids that are
    /// allowed, too.
    fn bad_ids(&self, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
        let vocabulary = served.engine.options().vocab;
        if let Some(id) = self.allowed.iter().find(|id| u64::from(**id) >= vocabulary) {
            let message = format!("{id} is none of the model's {vocabulary} ids");
            return Err(ApiError::field("allowed_token_ids", message));
        }
        let mut bad = Vec::new();
        for word in &self.bad_words {
            let tokenizer = needed(&served.tokenizer, "bad_words")?;
            for text in [word.trim_start().to_owned(), format!(" {}", word.trim_start())] {
                let ids = tokenizer.encode_more(&text);
                let ids = ids.map_err(|error| ApiError::field("bad_words", error))?;
                if !ids.is_empty() && !bad.contains(&ids) {
                    bad.push(ids);
                }
            }
        }
        Ok(bad)
    }
}

/// The last of a list, at most so many.
pub(crate) fn last<T>(list: &[T], most: usize) -> &[T] {
    &list[list.len().saturating_sub(most)..]
}

/// A seed that no other request has.
fn random() -> u64 {
    std::hash::RandomState::new().hash_one(Instant::now())
}

fn strings(fields: &mut Fields, name: &str, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let bad = || ApiError::field(name, "must be a string, or a list of them");
    let strings = match fields.take(name) {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(list)) => {
            let text = |value| match value {
                Value::String(text) => Ok(text),
                _ => Err(bad()),
            };
            list.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(bad()),
    };
    let bytes: usize = strings.iter().map(String::len).sum();
    let (most, most_bytes) = (limits.stop_texts, limits.stop_texts * BYTES_OF_STRING);
    if strings.len() > most || bytes > most_bytes {
        let message =
            format!("at most {most} strings of {most_bytes} bytes in all (--max-stop-texts)");
        return Err(ApiError::field(name, message));
    }
    Ok(strings)
}

fn cache_salt(fields: &mut Fields) -> Result<Option<Arc<str>>, ApiError> {
    let name = "cache_salt";
    let salt = fields.text(name)?;
    match salt.as_ref().map_or(1, |salt| salt.chars().take(LONGEST_SALT + 1).count()) {
        1..=LONGEST_SALT => Ok(salt.map(Arc::from)),
        _ => Err(ApiError::field(name, format!("must have 1 to {LONGEST_SALT} characters"))),
    }
}

/// The fields of `stream_options`.
const STREAM_OPTIONS: [&str; 3] =
    ["include_usage", "continuous_usage_stats", "include_obfuscation"];

fn stream_usage(fields: &mut Fields, stream: bool) -> Result<StreamUsage, ApiError> {
    let name = "stream_options";
    let options = match fields.take(name) {
        None => return Ok(StreamUsage::None),
        Some(_) if !stream => return Err(ApiError::field(name, "is for streams: set `stream`")),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(ApiError::field(name, "must be an object")),
    };
    for (key, value) in &options {
        // Events have no padding, whether a client would take some or not.
        if !STREAM_OPTIONS.contains(&key.as_str()) {
            return Err(ApiError::unknown(&format!("{name}.{key}")));
        }
        if !matches!(value, Value::Bool(_) | Value::Null) {
            return Err(ApiError::field(name, format!("`{key}` is true or false")));
        }
    }
    let asks = |key| options.get(key) == Some(&Value::Bool(true));
    Ok(match (asks("include_usage"), asks("continuous_usage_stats")) {
        (false, _) => StreamUsage::None,
        (true, false) => StreamUsage::Last,
        (true, true) => StreamUsage::Each,
    })
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let name = "logit_bias";
    let must = "must give each id a number from -100 to 100";
    let bad = || ApiError::field(name, must);
    let object: Map<_, _> = fields.typed(name, must)?.unwrap_or_default();
    if object.len() > MAX_LOGIT_BIASES {
        let message = format!("has {} ids, and at most {MAX_LOGIT_BIASES} are taken", object.len());
        return Err(ApiError::field(name, message));
    }
    let entry = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(bad)?;
        Ok((id.parse().map_err(|_| bad())?, bias as f32))
    };
    object.iter().map(entry).collect()
}

/// How many of the likeliest ids come with their log-probabilities.
pub(crate) fn top_logprobs(name: &str, value: &Value) -> Result<u32, ApiError> {
    let number = whole(value).and_then(|number| u32::try_from(number).ok());
    let bad = || ApiError::field(name, "must be a whole number from 0 to 20");
    number.filter(|number| *number <= 20).ok_or_else(bad)
}
