//! `/v1/completions`.

use super::body;
use super::error::ApiError;
use super::fields::{Field, Fields, ids};
use super::generation::{Delta, End, Generation, Part};
use super::logprobs::{CompletionLogprobs, spell};
use super::params::{Params, field, top_logprobs};
use super::sse::{self, Events, Frame};
use super::state::{Served, State, now};
use super::usage::UsageSum;
use axum::extract::{self, Request};
use axum::response::{IntoResponse, Response};
use piecewise::models::TextTokenizer;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's default.
const MAX_TOKENS: u64 = 16;

/// The fields besides those of [`Params`].
pub(crate) const FIELDS: &[Field] = &[
    field("model", r#"{"type":"string"}"#, "A name of the served model."),
    field(
        "prompt",
        r#"{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"array","items":{"type":"integer"}}}]}"#,
        "A text, texts, token ids, or lists of token ids.",
    ),
    field("echo", r#"{"type":"boolean"}"#, "Whether the answer begins with the prompt."),
    field(
        "logprobs",
        r#"{"type":"integer","minimum":0,"maximum":20}"#,
        "Log-probabilities of the tokens, and of so many of the likeliest ids beside each.",
    ),
];

/// A prompt on its way.
struct Prompt {
    ids: Vec<u32>,
    /// What was given, or what the ids say where the answer echoes it.
    text: Option<String>,
}

/// What every event of an answer has.
#[derive(Clone, Debug, Serialize)]
struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Debug, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = state.served()?;
    let mut fields = Fields::parse(&body::read(request, &state.limits).await?)?;
    state.check_name(fields.text("model")?)?;
    let mut params = Params::take(&mut fields, &served.defaults)?;
    params.bound(&state.limits);
    let echo = fields.flag("echo")?;
    let prompt = fields.take("prompt");
    let logprobs = match fields.take("logprobs") {
        Some(Value::Bool(false)) | None => None,
        Some(value) => Some(top_logprobs("logprobs", &value)?),
    };
    fields.refuse(&[("suffix", json!(""), "text is only written after the prompt")])?;
    fields.finish()?;
    if echo && logprobs.is_some() {
        let instead = "log-probabilities are of generated tokens: ask without `echo`";
        return Err(ApiError::unsupported("logprobs", instead));
    }
    let prompt = prompt.ok_or_else(|| ApiError::field("prompt", "is missing"))?;
    let prompts = read_prompts(prompt, served, echo).await?;
    let mut parts = Vec::new();
    for prompt in &prompts {
        for number in 0..params.choices {
            parts.push(part(served, &params, prompt, number, logprobs)?);
        }
    }
    params.constrain(&state, &mut parts).await?;
    let generation = Generation::start(&served.engine, parts).await?;
    let head = Head {
        id: super::ids::next("cmpl"),
        object: "text_completion",
        created: now(),
        model: state.name().to_owned(),
    };
    let usage = UsageSum::new(prompts.iter().map(|prompt| prompt.ids.len()), params.choices);
    let answers = Answers {
        state: Arc::clone(&state),
        generation,
        head,
        usage,
        prompts,
        echo,
        params,
        has_begun: false,
        wants_logprobs: logprobs.is_some(),
    };
    match answers.params.stream {
        true => Ok(sse::response(answers)),
        false => answers.whole().await,
    }
}

/// A request to the engine, with the text that will become of its ids.
fn part(
    served: &Served,
    params: &Params,
    prompt: &Prompt,
    number: usize,
    logprobs: Option<u32>,
) -> Result<Part, ApiError> {
    let mut request = params.request(prompt.ids.clone(), number, &served.end_ids, MAX_TOKENS);
    request.logprobs = logprobs;
    Ok(Part { request, text: params.output(served, "prompt", &prompt.ids, false)? })
}

/// The prompts, encoded off the threads that others wait for.
async fn read_prompts(value: Value, served: &Served, echo: bool) -> Result<Vec<Prompt>, ApiError> {
    let bad =
        || ApiError::field("prompt", "must be a text, texts, token ids, or lists of token ids");
    let texts: Vec<String> = match value {
        Value::String(text) => vec![text],
        Value::Array(list) => match list.first() {
            Some(Value::String(_)) => {
                let text = |value| match value {
                    Value::String(text) => Ok(text),
                    _ => Err(bad()),
                };
                list.into_iter().map(text).collect::<Result<_, _>>()?
            }
            Some(Value::Number(_)) => {
                return Ok(vec![of_ids(ids("prompt", &list)?, served, echo)?]);
            }
            Some(Value::Array(_)) => {
                let prompt = |value: &Value| {
                    let list = value.as_array().ok_or_else(bad)?;
                    of_ids(ids("prompt", list)?, served, echo)
                };
                return list.iter().map(prompt).collect();
            }
            _ => return Err(bad()),
        },
        _ => return Err(bad()),
    };
    let tokenizer = Arc::clone(served.tokenizer("prompt")?);
    let encode = move || {
        let prompt = |text: String| {
            let ids = tokenizer.encode(&text).map_err(|error| ApiError::field("prompt", error))?;
            Ok(Prompt { ids, text: Some(text) })
        };
        texts.into_iter().map(prompt).collect()
    };
    tokio::task::spawn_blocking(encode)
        .await
        .map_err(|error| ApiError::internal(error.to_string()))?
}

fn of_ids(ids: Vec<u32>, served: &Served, echo: bool) -> Result<Prompt, ApiError> {
    let decode = |tokenizer: &Arc<TextTokenizer>| tokenizer.decode(&ids);
    let text = served.tokenizer.as_ref().filter(|_| echo).map(decode).transpose();
    let text = text.map_err(|error| ApiError::field("prompt", error))?;
    Ok(Prompt { ids, text })
}

/// Answers on their way out.
struct Answers {
    state: Arc<State>,
    generation: Generation,
    head: Head,
    usage: UsageSum,
    prompts: Vec<Prompt>,
    echo: bool,
    params: Params,
    has_begun: bool,
    wants_logprobs: bool,
}

impl Answers {
    /// The beginning of an answer, before anything is generated.
    fn beginning(&self, index: usize) -> Choice {
        let prompt = &self.prompts[index / self.params.choices];
        let text = prompt.text.as_ref().filter(|_| self.echo);
        let ids = self.params.return_token_ids;
        Choice {
            index,
            text: text.cloned().unwrap_or_default(),
            token_ids: ids.then(Vec::new),
            prompt_token_ids: ids.then(|| prompt.ids.clone()),
            ..Choice::default()
        }
    }

    fn extend(&mut self, choice: &mut Choice, delta: Delta) {
        choice.text.push_str(&delta.text);
        if self.wants_logprobs {
            let served = self.state.served.get();
            let vocabulary = served.and_then(|served| served.vocabulary.as_ref());
            let logprobs = choice.logprobs.get_or_insert_default();
            delta
                .logprobs
                .iter()
                .for_each(|entry| logprobs.push(entry, |id| spell(vocabulary, id)));
        }
        if let Some(ids) = &mut choice.token_ids {
            ids.extend(delta.ids);
        }
        if let Some(End { reason, stop, usage }) = delta.end {
            (choice.finish_reason, choice.stop_reason) = (Some(reason), stop);
            self.usage.add(delta.index, usage);
        }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let count = self.prompts.len() * self.params.choices;
        let mut choices: Vec<Choice> = (0..count).map(|index| self.beginning(index)).collect();
        loop {
            let deltas = self.generation.next().await?;
            if deltas.is_empty() {
                break;
            }
            for delta in deltas {
                let mut choice = std::mem::take(&mut choices[delta.index]);
                let index = delta.index;
                self.extend(&mut choice, delta);
                choices[index] = choice;
            }
        }
        let usage = Some(self.usage.json());
        let answer = Answer { head: &self.head, choices, usage };
        Ok(axum::Json(&answer).into_response())
    }
}

impl Events for Answers {
    async fn next(&mut self, frame: &mut Frame) -> Result<bool, ApiError> {
        let without = self.params.include_usage.then_some(Value::Null);
        if !std::mem::replace(&mut self.has_begun, true)
            && (self.echo || self.params.return_token_ids)
        {
            for index in 0..self.prompts.len() * self.params.choices {
                let choices = vec![self.beginning(index)];
                frame.event(&Answer { head: &self.head, choices, usage: without.clone() });
            }
            return Ok(true);
        }
        let deltas = self.generation.next().await?;
        if deltas.is_empty() {
            if self.params.include_usage {
                let usage = Some(self.usage.json());
                frame.event(&Answer { head: &self.head, choices: Vec::new(), usage });
            }
            return Ok(false);
        }
        for delta in deltas {
            let token_ids = self.params.return_token_ids.then(Vec::new);
            let mut choice = Choice { index: delta.index, token_ids, ..Choice::default() };
            self.extend(&mut choice, delta);
            let choices = vec![choice];
            frame.event(&Answer { head: &self.head, choices, usage: without.clone() });
        }
        Ok(true)
    }
}
