//! `/v1/completions`.

use super::answer::{Answers, Choices, Rest};
use super::body::Held;
use super::error::ApiError;
use super::fields::{Field, Fields, MODEL, field, ids, schema};
use super::generation::{Delta, End, Generation, Part, StopReason, TokenEntry};
use super::logprobs::{CompletionLogprobs, PromptLogprobs, bounded, count, spell};
use super::params::{Params, last, top_logprobs};
use super::state::{Served, State, longest, needed};
use crate::structured::Wanted;
use crate::text::{OutputText, StopStrings};
use axum::extract::{self, Request};
use axum::response::Response;
use piecewise::models::TextTokenizer;
use piecewise_runtime::engine_thread::SubmitError;
use serde::{Serialize, Serializer};
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
    ids: Arc<[u32]>,
    /// What was given, or what the ids say where the answer echoes it.
    text: Option<String>,
    /// [`offsets`], where it is echoed with log-probabilities.
    offsets: Option<Vec<usize>>,
}

/// What is wanted of prompts.
#[derive(Clone, Copy)]
struct Reading {
    /// Whether texts get the tokenizer's own special tokens.
    adds_special: bool,
    /// The most tokens of each, the last ones.
    most: Option<usize>,
    /// Whether their ids have a text that is shown, and whether special tokens have one there.
    shows: Option<bool>,
    with_offsets: bool,
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
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shared")]
    prompt_token_ids: Option<Arc<[u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

fn shared<S: Serializer>(ids: &Option<Arc<[u32]>>, serializer: S) -> Result<S::Ok, S::Error> {
    ids.as_deref().serialize(serializer)
}

impl Asked {
    fn take(state: &State, mut fields: Fields) -> Result<Self, ApiError> {
        let served = state.served()?;
        let echo = fields.flag("echo")?;
        // Who wants to see the prompt may want nothing else.
        let is_of_prompt = echo && fields.take_if("max_tokens", &json!(0));
        let mut params = Params::take(&mut fields, served, &state.limits)?;
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
        let most = params.most(served).unwrap_or(usize::MAX);
        let of_list = |list: &[Value]| {
            let list = last(list, most);
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
                Some(Value::Number(_)) => Ok(Self::Ids(vec![of_list(&list)?])),
                Some(Value::Array(_)) => {
                    let of = |value: &Value| of_list(value.as_array().ok_or_else(bad)?);
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
    let reading = Reading {
        adds_special,
        most: params.most(served),
        shows: echo.then_some(params.special),
        with_offsets: echo && logprobs.is_some(),
    };
    let prompts = read_prompts(prompt, &state, &held, reading).await?;
    let prompt_logprobs = params.prompt_logprobs.max(logprobs.filter(|_| echo));
    let of_each = |prompt: &Prompt| {
        let tokens = prompt.ids.len() as u64;
        let room = served.engine.options().max_seq_len.saturating_sub(tokens);
        let most = params.max_tokens.unwrap_or(MAX_TOKENS).min(room);
        let asked = [params.prompt_logprobs, logprobs.filter(|_| echo)];
        let of_prompt: u64 = asked.map(|top| count(tokens, top)).iter().sum();
        (count(most, logprobs) + of_prompt) * params.choices as u64
    };
    if !params.stream {
        bounded(prompts.iter().map(of_each).sum(), state.limits.logprobs)?;
    }
    let mut parts = Vec::new();
    for prompt in &prompts {
        for number in 0..params.choices {
            let mut request = params.request(Arc::clone(&prompt.ids), number, MAX_TOKENS);
            (request.logprobs, request.prompt_logprobs) = (logprobs, prompt_logprobs);
            let text = params.output(served, "prompt", &prompt.ids, false)?;
            let named_stops = Arc::clone(&params.named_stops);
            parts.push(Part { request, text, named_stops, is_of_prompt });
        }
    }
    params.constrain(&state, &mut parts, None).await?;
    // Each answer has the text of its prompt, and once more as it is written.
    let echoed = |prompt: &Prompt| prompt.text.as_ref().map_or(0, String::len);
    let echoed: usize = prompts.iter().map(echoed).sum();
    let held = held.for_answer(2 * echoed.saturating_mul(params.choices))?;
    let seen = vec![1; parts.len()];
    let lengths = Vec::from_iter(prompts.iter().map(|prompt| prompt.ids.len()));
    let unread = held.another();
    let generation = Generation::start(&served.engine, parts, params.choices, unread).await?;
    let wants_logprobs = logprobs.is_some();
    let completions = Completions {
        state: Arc::clone(&state),
        prompts,
        echo,
        wants_logprobs,
        tokens_as_ids: params.tokens_as_ids,
        told: seen,
        choices: params.choices,
        return_token_ids: params.return_token_ids,
        prompt_logprobs: params.prompt_logprobs,
    };
    let kind = ("cmpl", "text_completion");
    let lengths = lengths.into_iter();
    let answers = Answers::new(&state, kind, generation, lengths, (&params, held), completions);
    answers.respond(params.stream).await
}

/// Characters of a prompt's text before each of its tokens, and before what is generated; `special` is
/// whether special tokens have text.
fn offsets(served: &Served, ids: &[u32], special: Option<bool>) -> Result<Vec<usize>, ApiError> {
    let Some(tokenizer) = &served.tokenizer else { return Ok(vec![0; ids.len() + 1]) };
    let special = special.unwrap_or(false);
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

/// The prompts, read off the threads that others wait for.
async fn read_prompts(
    given: Given,
    state: &Arc<State>,
    held: &Held,
    reading: Reading,
) -> Result<Vec<Prompt>, ApiError> {
    let served = state.served()?;
    let shared = Arc::clone(state);
    // Who has gone is told of no prompt.
    match given {
        Given::Ids(lists) if reading.shows.is_none() => {
            let prompt = |ids| of_ids(ids, served, reading);
            lists.into_iter().map(prompt).collect()
        }
        Given::Ids(lists) => {
            let read = move |is_wanted: Wanted<'_>| {
                let served = shared.served()?;
                let lists = lists.into_iter().take_while(|_| is_wanted());
                lists.map(|ids| of_ids(ids, served, reading)).collect()
            };
            state.read_texts(held, 0, read).await
        }
        Given::Texts(texts) => {
            needed(&served.tokenizer, "prompt")?;
            texts.iter().try_for_each(|text| served.room.check_text("prompt", text))?;
            let longest = longest(&texts);
            let read = move |is_wanted: Wanted<'_>| {
                let served = shared.served()?;
                let texts = texts.into_iter().take_while(|_| is_wanted());
                texts.map(|text| of_text(text, served, reading, is_wanted)).collect()
            };
            state.read_texts(held, longest, read).await
        }
    }
}

fn of_text(
    text: String,
    served: &Served,
    reading: Reading,
    is_wanted: Wanted<'_>,
) -> Result<Prompt, ApiError> {
    let tokenizer = needed(&served.tokenizer, "prompt")?;
    let given = (text.as_str(), reading.adds_special);
    let ids = served.room.encode(tokenizer, "prompt", given, is_wanted)?;
    match reading.most {
        Some(most) if ids.len() > most => of_ids(last(&ids, most).to_vec(), served, reading),
        _ => {
            let offsets = reading.with_offsets.then(|| offsets(served, &ids, reading.shows));
            let text = reading.shows.is_some().then_some(text);
            Ok(Prompt { ids: ids.into(), text, offsets: offsets.transpose()? })
        }
    }
}

fn of_ids(ids: Vec<u32>, served: &Served, reading: Reading) -> Result<Prompt, ApiError> {
    served.room.check_ids("prompt", ids.len())?;
    let decode =
        |(tokenizer, special): (&Arc<TextTokenizer>, bool)| tokenizer.decode_with(&ids, special);
    let text = served.tokenizer.as_ref().zip(reading.shows).map(decode).transpose();
    let text = text.map_err(|error| ApiError::field("prompt", error))?;
    let offsets = reading.with_offsets.then(|| offsets(served, &ids, reading.shows)).transpose()?;
    Ok(Prompt { ids: ids.into(), text, offsets })
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
            logprobs: prompt.offsets.as_ref().map(first),
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
        let offsets = self.prompts[delta.index / self.choices].offsets.as_ref();
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
