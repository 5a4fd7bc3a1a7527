//! `/v1/completions`.

use super::answer::{Answers, Choices, Rest};
use super::body::Held;
use super::error::ApiError;
use super::fields::{Field, Fields, MODEL, field, ids, schema};
use super::generation::{Delta, End, Generation, Part, StopReason, TokenEntry};
use super::logprobs::{CompletionLogprobs, PromptLogprobs, spell};
use super::params::{Params, top_logprobs};
use super::state::{Served, State, needed};
use crate::structured::Wanted;
use crate::text::{OutputText, StopStrings};
use axum::extract::{self, Request};
use axum::response::Response;
use piecewise::models::TextTokenizer;
use piecewise_runtime::engine_thread::SubmitError;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's default.
const MAX_TOKENS: u64 = 16;

/// The fields besides those of [`Params`].
pub(crate) const FIELDS: &[Field] = &[
    MODEL,
    field("prompt", schema::TEXTS_OR_IDS, "A text, texts, token ids, or lists of token ids."),
    field(
        "add_special_tokens",
        schema::FLAG_THAT_IS_SET,
        "Whether the tokenizer's own special tokens are added to texts.",
    ),
    field("echo", schema::FLAG, "Whether the answer begins with the prompt."),
    field(
        "logprobs",
        schema::LIKELIEST,
        "Log-probabilities of the tokens, and of so many of the likeliest ids beside each.",
    ),
];

/// What a request asks for.
struct Asked {
    params: Params,
    prompt: Given,
    adds_special: bool,
    echo: bool,
    /// Whether nothing but the prompt is wanted.
    is_of_prompt: bool,
    logprobs: Option<u32>,
    held: Held,
}

/// Prompts as they were given.
enum Given {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

/// A prompt on its way.
struct Prompt {
    ids: Vec<u32>,
    /// What was given, or what the ids say where the answer echoes it.
    text: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

impl Asked {
    fn take(state: &State, mut fields: Fields) -> Result<Self, ApiError> {
        let served = state.served()?;
        let echo = fields.flag("echo")?;
        // Who wants to see the prompt may want nothing else.
        let is_of_prompt = echo && fields.take_if("max_tokens", &json!(0));
        let mut params = Params::take(&mut fields, &served.defaults, &state.limits)?;
        if is_of_prompt {
            params.max_tokens = Some(1);
        }
        let prompt = fields.take("prompt");
        let adds_special = fields.flag_or("add_special_tokens", true)?;
        let logprobs = match fields.take("logprobs") {
            Some(Value::Bool(false)) | None => None,
            Some(value) => Some(top_logprobs("logprobs", &value)?),
        };
        fields.refuse(&[("suffix", json!(""), "text is only written after the prompt")])?;
        let held = fields.finish()?;
        let prompt = prompt.ok_or_else(|| ApiError::field("prompt", "is missing"))?;
        let at_once = prompt.as_array().map_or(1, |list| match list.first() {
            Some(Value::Number(_)) => 1,
            _ => list.len(),
        });
        let (count, bound) =
            (at_once.saturating_mul(params.choices), served.engine.most_requests());
        if count > bound {
            return Err(SubmitError::TooMany { count, bound }.into());
        }
        let prompt = Given::of(prompt, &params, served)?;
        Ok(Self { params, prompt, adds_special, echo, is_of_prompt, logprobs, held })
    }
}

impl Given {
    fn of(value: Value, params: &Params, served: &Served) -> Result<Self, ApiError> {
        let bad =
            || ApiError::field("prompt", "must be a text, texts, token ids, or lists of token ids");
        let last = |list: &[Value]| {
            let list = params.last(list, served);
            served.room.check_ids("prompt", list.len())?;
            ids("prompt", list)
        };
        match value {
            Value::String(text) => Ok(Self::Texts(vec![text])),
            Value::Array(list) => match list.first() {
                Some(Value::String(_)) => {
                    let text = |value| match value {
                        Value::String(text) => Ok(text),
                        _ => Err(bad()),
                    };
                    Ok(Self::Texts(list.into_iter().map(text).collect::<Result<_, _>>()?))
                }
                Some(Value::Number(_)) => Ok(Self::Ids(vec![last(&list)?])),
                Some(Value::Array(_)) => {
                    let of = |value: &Value| last(value.as_array().ok_or_else(bad)?);
                    Ok(Self::Ids(list.iter().map(of).collect::<Result<_, _>>()?))
                }
                _ => Err(bad()),
            },
            _ => Err(bad()),
        }
    }
}

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = state.served()?;
    let asked = Fields::read(request, &state, Asked::take).await?;
    let Asked { params, prompt, adds_special, echo, is_of_prompt, logprobs, held } = asked;
    let shows = echo.then_some(params.special);
    let mut prompts = read_prompts(prompt, &state, &held, adds_special, shows).await?;
    for prompt in &mut prompts {
        if params.truncate(&mut prompt.ids, served) {
            *prompt = of_ids(std::mem::take(&mut prompt.ids), served, shows)?;
        }
    }
    let mut parts = Vec::new();
    for prompt in &prompts {
        for number in 0..params.choices {
            let mut request =
                params.request(prompt.ids.clone(), number, &served.end_ids, MAX_TOKENS);
            request.logprobs = logprobs;
            request.prompt_logprobs = params.prompt_logprobs.max(logprobs.filter(|_| echo));
            let text = params.output(served, "prompt", &prompt.ids, false)?;
            let named_stops = params.named_stops(&served.end_ids);
            parts.push(Part { request, text, named_stops, is_of_prompt });
        }
    }
    params.constrain(&state, &mut parts, None).await?;
    drop(held);
    let beginnings = match (echo, logprobs) {
        (true, Some(_)) => {
            let of = |prompt: &Prompt| offsets(served, &prompt.ids, params.special);
            prompts.iter().map(of).collect::<Result<_, _>>()?
        }
        _ => Vec::new(),
    };
    let told = vec![1; parts.len()];
    let lengths = Vec::from_iter(prompts.iter().map(|prompt| prompt.ids.len()));
    let Params { choices, client, .. } = &params;
    let generation = Generation::start(&served.engine, parts, *choices, client).await?;
    let wants_logprobs = logprobs.is_some();
    let completions = Completions {
        state: Arc::clone(&state),
        prompts,
        echo,
        wants_logprobs,
        tokens_as_ids: params.tokens_as_ids,
        offsets: beginnings,
        told,
        choices: params.choices,
        return_token_ids: params.return_token_ids,
        prompt_logprobs: params.prompt_logprobs,
    };
    let kind = ("cmpl", "text_completion");
    let answers = Answers::new(&state, kind, generation, lengths.into_iter(), &params, completions);
    answers.respond(params.stream).await
}

/// Characters of a prompt's text before each of its tokens, and before what is generated; `special` is
/// whether special tokens have text.
fn offsets(served: &Served, ids: &[u32], special: bool) -> Result<Vec<usize>, ApiError> {
    let Some(tokenizer) = &served.tokenizer else { return Ok(vec![0; ids.len() + 1]) };
    let failed = |error| ApiError::field("prompt", error);
    let mut text = OutputText::new(Arc::clone(tokenizer), &[], StopStrings::default(), special)
        .map_err(failed)?;
    let mut offsets = Vec::with_capacity(ids.len() + 1);
    for &id in ids {
        offsets.push(text.push(id).map_err(failed)?.offset);
    }
    let last = text.finish().map_err(failed)?;
    offsets.push(last.offset + last.text.chars().count());
    Ok(offsets)
}

/// The prompts, encoded off the threads that others wait for: texts with the tokenizer's own special tokens
/// if it `adds_special` ones. `shows` is there where ids have a text that is shown, and whether special
/// tokens have one there.
async fn read_prompts(
    given: Given,
    state: &State,
    held: &Held,
    adds_special: bool,
    shows: Option<bool>,
) -> Result<Vec<Prompt>, ApiError> {
    let served = state.served()?;
    let texts = match given {
        Given::Texts(texts) => texts,
        Given::Ids(lists) => {
            return lists.into_iter().map(|ids| of_ids(ids, served, shows)).collect();
        }
    };
    let tokenizer = Arc::clone(needed(&served.tokenizer, "prompt")?);
    texts.iter().try_for_each(|text| served.room.check_text("prompt", text))?;
    let encode = move |is_wanted: Wanted<'_>| -> Result<Vec<Prompt>, ApiError> {
        let prompt = |text: String| {
            let ids = tokenizer.encode_with(&text, adds_special);
            let ids = ids.map_err(|error| ApiError::field("prompt", error))?;
            Ok(Prompt { ids, text: Some(text) })
        };
        // Who has gone is told of no prompt.
        texts.into_iter().take_while(|_| is_wanted()).map(prompt).collect()
    };
    state.read_texts(held, encode).await
}

fn of_ids(ids: Vec<u32>, served: &Served, shows: Option<bool>) -> Result<Prompt, ApiError> {
    served.room.check_ids("prompt", ids.len())?;
    let decode =
        |(tokenizer, special): (&Arc<TextTokenizer>, bool)| tokenizer.decode_with(&ids, special);
    let text = served.tokenizer.as_ref().zip(shows).map(decode).transpose();
    let text = text.map_err(|error| ApiError::field("prompt", error))?;
    Ok(Prompt { ids, text })
}

/// Texts that go on from prompts.
struct Completions {
    state: Arc<State>,
    prompts: Vec<Prompt>,
    /// How many answers each prompt has.
    choices: usize,
    echo: bool,
    return_token_ids: bool,
    wants_logprobs: bool,
    /// Whether log-probabilities name tokens by their ids.
    tokens_as_ids: bool,
    prompt_logprobs: Option<u32>,
    /// Of each prompt that is echoed with log-probabilities, [`offsets`].
    offsets: Vec<Vec<usize>>,
    /// Of each answer, how many tokens of its prompt were told of.
    told: Vec<usize>,
}

impl Choices for Completions {
    type Choice = Choice;

    fn count(&self) -> usize {
        self.told.len()
    }

    fn begin(&self, index: usize, _streams: bool) -> Choice {
        let prompt = &self.prompts[index / self.choices];
        let text = prompt.text.as_ref().filter(|_| self.echo);
        let first = |_: &Vec<usize>| {
            let mut logprobs = CompletionLogprobs::default();
            let id = prompt.ids.first().copied().unwrap_or(0);
            self.push(&mut logprobs, TokenEntry { id, offset: 0, logprobs: None });
            logprobs
        };
        Choice {
            text: text.cloned().unwrap_or_default(),
            prompt_token_ids: self.return_token_ids.then(|| prompt.ids.clone()),
            logprobs: self.offsets.get(index / self.choices).map(first),
            prompt_logprobs: self.prompt_logprobs.map(|_| PromptLogprobs::begun()),
            ..self.piece(index)
        }
    }

    fn has_beginning(&self) -> bool {
        self.echo || self.return_token_ids
    }

    fn piece(&self, index: usize) -> Choice {
        Choice { index, token_ids: self.return_token_ids.then(Vec::new), ..Choice::default() }
    }

    fn extend(&mut self, choice: &mut Choice, delta: Delta) -> Result<(), ApiError> {
        // A piece of a stream is all that came.
        match choice.text.is_empty() {
            true => choice.text = delta.text,
            false => choice.text.push_str(&delta.text),
        }
        let offsets = self.offsets.get(delta.index / self.choices);
        let beginning = offsets.and_then(|offsets| offsets.last()).copied().unwrap_or(0);
        let mut entries = Vec::new();
        for (id, logprobs) in delta.prompt {
            if let (Some(all), Some(most)) = (&mut choice.prompt_logprobs, self.prompt_logprobs) {
                all.push(id, &logprobs, most, self.state.vocabulary());
            }
            let told = &mut self.told[delta.index];
            if let Some(&offset) = offsets.and_then(|offsets| offsets.get(*told)) {
                entries.push(TokenEntry { id, offset, logprobs: Some(logprobs) });
            }
            *told += 1;
        }
        entries.extend(
            delta
                .logprobs
                .into_iter()
                .map(|entry| TokenEntry { offset: beginning + entry.offset, ..entry }),
        );
        if self.wants_logprobs {
            let logprobs = choice.logprobs.get_or_insert_default();
            entries.into_iter().for_each(|entry| self.push(logprobs, entry));
        }
        if let Some(ids) = &mut choice.token_ids {
            ids.extend(delta.ids);
        }
        if let Some(End { reason, stop, .. }) = delta.end {
            (choice.finish_reason, choice.stop_reason) = (Some(reason), Some(stop));
        }
        Ok(())
    }

    fn rest(self) -> Rest {
        Rest::default()
    }
}

impl Completions {
    fn push(&self, logprobs: &mut CompletionLogprobs, entry: TokenEntry) {
        let vocabulary = self.state.vocabulary().filter(|_| !self.tokens_as_ids);
        logprobs.push(&entry, |id| spell(vocabulary, id));
    }
}
