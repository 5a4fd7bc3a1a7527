//! `/v1/chat/completions`.

use super::answer::{Answers, Choices, Rest};
use super::chat_prompt;
use super::error::ApiError;
use super::fields::{Field, Fields, MODEL, field, schema};
use super::generation::{Delta, End, Generation, Part, StopReason};
use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::params::{Params, top_logprobs};
use super::state::State;
use crate::chat::{ReplyDelta, ReplyError, ReplyParser, ToolCallDelta, ToolChoice};
use axum::extract::{self, Request};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The fields besides those of [`Params`] and of the conversation.
pub(crate) const FIELDS: &[Field] = &[
    MODEL,
    field(
        "max_completion_tokens",
        schema::COUNT,
        "The most tokens to generate; all that the context has room for where it is left out.",
    ),
    field("logprobs", schema::FLAG, "Whether tokens come with their log-probabilities."),
    field(
        "top_logprobs",
        schema::LIKELIEST,
        "How many of the likeliest ids come with theirs beside each token.",
    ),
    field(
        "include_reasoning",
        schema::FLAG_THAT_IS_SET,
        "Whether replies have their thoughts, as `reasoning_content`.",
    ),
];

#[derive(Debug, Default, Serialize)]
struct Choice {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Message>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize)]
struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Default, Serialize)]
struct ToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function,
}

#[derive(Debug, Default, Serialize)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Message {
    fn begun() -> Self {
        let content = Some(String::new());
        Self { role: Some("assistant"), content, ..Self::default() }
    }

    /// Adds what came of a piece of text: as it came to a piece of a stream, and each call as a whole
    /// to a message.
    fn add(&mut self, delta: ReplyDelta, streams: bool) {
        let ReplyDelta { reasoning, content, tool_calls } = delta;
        self.reasoning_content.push_str(&reasoning);
        if !content.is_empty() {
            self.content.get_or_insert_default().push_str(&content);
        }
        for ToolCallDelta { index, id, name, arguments } in tool_calls {
            let at = if streams { self.tool_calls.len() } else { index };
            while self.tool_calls.len() <= at {
                self.tool_calls.push(ToolCall::default());
            }
            let call = &mut self.tool_calls[at];
            call.index = streams.then_some(index);
            call.kind = call.kind.or(id.as_ref().map(|_| "function"));
            call.id = call.id.take().or(id);
            call.function.name = call.function.name.take().or(name);
            call.function.arguments.push_str(&arguments);
        }
    }
}

pub(crate) async fn handle(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = state.served()?;
    let mut fields = Fields::read(request, &state).await?;
    fields.rename("max_completion_tokens", "max_tokens");
    let mut params = Params::take(&mut fields, &served.defaults, &state.limits)?;
    let logprobs = fields.flag("logprobs")?;
    let logprobs = match fields.take("top_logprobs") {
        None => logprobs.then_some(0),
        Some(value) => match top_logprobs("top_logprobs", &value)? {
            most if logprobs => Some(most),
            0 => None,
            _ => return Err(ApiError::field("top_logprobs", "needs `logprobs`")),
        },
    };
    let asked = chat_prompt::take(&mut fields)?;
    let tools = asked.tools.clone();
    match (tools.structure(), &params.structure) {
        (None, _) => {}
        (Some(structure), None) => params.structure = Some(("tools".to_owned(), structure)),
        (Some(_), Some(_)) => {
            let why = "a call that must be made has a structure of its own: ask for no other";
            return Err(ApiError::field("tool_choice", why));
        }
    }
    let shows_thoughts = fields.flag_or("include_reasoning", true)?;
    fields.refuse(&[
        ("functions", json!([]), "use `tools`"),
        ("function_call", json!("none"), "use `tool_choice`"),
        ("modalities", json!(["text"]), "answers are text"),
        ("audio", Value::Null, "answers are text"),
        ("prediction", Value::Null, "leave it out"),
        ("verbosity", Value::Null, "ask in the messages"),
        ("web_search_options", Value::Null, "nothing is searched"),
        ("echo", json!(false), "set `continue_final_message`"),
    ])?;
    let held = fields.finish()?;
    let (mut ids, text) = chat_prompt::encode(&state, &held, asked).await?;
    params.truncate(&mut ids, served);
    served.room.check_ids("messages", ids.len())?;
    let calls = tools.choice() != &ToolChoice::None;
    let special = served.format.needs_special_tokens(calls);
    let room = served.engine.options().max_seq_len.saturating_sub(ids.len() as u64).max(1);
    let (mut parts, mut parsers) = (Vec::new(), Vec::new());
    for number in 0..params.choices {
        let mut request = params.request(ids.clone(), number, &served.end_ids, room);
        request.logprobs = logprobs;
        // The prompt is the same for all.
        request.prompt_logprobs = request.prompt_logprobs.filter(|_| number == 0);
        let reply = params.output(served, "messages", &ids, special)?;
        let named_stops = params.named_stops(&served.end_ids);
        parts.push(Part { request, text: reply, named_stops, is_of_prompt: false });
        let parser = served.format.parser(&tools, &text);
        parsers.push(parser.map_err(|error| ApiError::field("tools", error))?);
    }
    params.constrain(&state, &mut parts, served.format.thoughts(&text)).await?;
    drop(held);
    let generation = Generation::start(&served.engine, parts, &params).await;
    let generation = generation.map_err(|error| error.of_field("prompt", "messages"))?;
    let lengths = [ids.len()].into_iter();
    let replies = Replies {
        state: Arc::clone(&state),
        parsers,
        prompt: params.return_token_ids.then_some(ids),
        prompt_logprobs: params.prompt_logprobs.map(|most| (most, PromptLogprobs::begun())),
        wants_logprobs: logprobs.is_some(),
        shows_thoughts,
        tokens_as_ids: params.tokens_as_ids,
    };
    let object = if params.stream { "chat.completion.chunk" } else { "chat.completion" };
    let kind = ("chatcmpl", object);
    Answers::new(&state, kind, generation, lengths, &params, replies).respond(params.stream).await
}

/// Messages in reply to a conversation.
struct Replies {
    state: Arc<State>,
    /// Of each reply.
    parsers: Vec<ReplyParser>,
    /// Its ids, where they are to be returned.
    prompt: Option<Vec<u32>>,
    /// At most how many of the likeliest ids are shown, and those of the first reply's prompt.
    prompt_logprobs: Option<(u32, PromptLogprobs)>,
    wants_logprobs: bool,
    shows_thoughts: bool,
    /// Whether log-probabilities name tokens by their ids.
    tokens_as_ids: bool,
}

impl Choices for Replies {
    type Choice = Choice;

    fn count(&self) -> usize {
        self.parsers.len()
    }

    fn begin(&self, index: usize, streams: bool) -> Choice {
        match streams {
            true => Choice { index, delta: Some(Message::begun()), ..Choice::default() },
            false => Choice { message: Some(Message::begun()), delta: None, ..self.piece(index) },
        }
    }

    fn has_beginning(&self) -> bool {
        true
    }

    fn piece(&self, index: usize) -> Choice {
        let token_ids = self.prompt.is_some().then(Vec::new);
        Choice { index, delta: Some(Message::default()), token_ids, ..Choice::default() }
    }

    fn extend(&mut self, choice: &mut Choice, delta: Delta) -> Result<(), ApiError> {
        let failed = |error: ReplyError| ApiError::internal(error.to_string());
        let parser = &mut self.parsers[delta.index];
        let streams = choice.delta.is_some();
        if let Some(message) = choice.message.as_mut().or(choice.delta.as_mut()) {
            let shown = |mut delta: ReplyDelta| {
                if !self.shows_thoughts {
                    delta.reasoning.clear();
                }
                delta
            };
            message.add(shown(parser.push(&delta.text).map_err(failed)?), streams);
            if delta.end.is_some() {
                message.add(shown(parser.finish().map_err(failed)?), streams);
            }
        }
        let called = parser.called_tools();
        let vocabulary = self.state.vocabulary().filter(|_| !self.tokens_as_ids);
        if let Some((most, told)) = self.prompt_logprobs.as_mut().filter(|_| delta.index == 0) {
            delta.prompt.iter().for_each(|(id, token)| told.push(*id, token, *most, vocabulary));
        }
        if self.wants_logprobs {
            let logprobs = choice.logprobs.get_or_insert_default();
            delta.logprobs.iter().for_each(|entry| logprobs.push(entry, vocabulary));
        }
        if let Some(ids) = &mut choice.token_ids {
            ids.extend(delta.ids);
        }
        if let Some(End { reason, stop, .. }) = delta.end {
            let reason = if called && reason == "stop" { "tool_calls" } else { reason };
            (choice.finish_reason, choice.stop_reason) = (Some(reason), Some(stop));
        }
        Ok(())
    }

    fn rest(self) -> Rest {
        let Self { prompt, prompt_logprobs, .. } = self;
        Rest {
            prompt_token_ids: prompt,
            prompt_logprobs: prompt_logprobs.map(|(_, logprobs)| logprobs),
        }
    }
}
