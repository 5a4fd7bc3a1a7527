//! `/v1/chat/completions`.

use super::answer::{Answers, Choices, Rest};
use super::error::ApiError;
use super::fields::{Field, Fields, MODEL, field, schema};
use super::generation::{Delta, End, StopReason};
use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::replying::{Asked, Replying};
use super::state::State;
use crate::chat::{ReplyDelta, ReplyError, ReplyParser, ToolCallDelta};
use axum::extract::{self, Request};
use axum::response::Response;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// The fields besides those of how tokens are chosen and of the conversation.
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
        "Whether replies have their thoughts, as `reasoning_content` and `reasoning`.",
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

#[derive(Debug, Default)]
struct Message {
    role: Option<&'static str>,
    content: Option<String>,
    reasoning: String,
    tool_calls: Vec<ToolCall>,
}

impl Serialize for Message {
    /// Thoughts have two names: clients know the one or the other.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { role, content, reasoning, tool_calls } = self;
        let mut fields = serializer.serialize_map(None)?;
        if let Some(role) = role {
            fields.serialize_entry("role", role)?;
        }
        if let Some(content) = content {
            fields.serialize_entry("content", content)?;
        }
        if !reasoning.is_empty() {
            fields.serialize_entry("reasoning_content", reasoning)?;
            fields.serialize_entry("reasoning", reasoning)?;
        }
        if !tool_calls.is_empty() {
            fields.serialize_entry("tool_calls", tool_calls)?;
        }
        fields.end()
    }
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
        self.reasoning.push_str(&reasoning);
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
    state.served()?;
    let asked = Fields::read(request, &state, Asked::take).await?;
    let replying = Replying::begin(&state, asked).await?;
    let Replying { params, ids, generation, parsers, wants_logprobs, shows_thoughts, held } =
        replying;
    let lengths = [ids.len()].into_iter();
    let replies = Replies {
        state: Arc::clone(&state),
        parsers,
        prompt: params.return_token_ids.then_some(ids),
        prompt_logprobs: params.prompt_logprobs.map(|most| (most, PromptLogprobs::begun())),
        wants_logprobs,
        shows_thoughts,
        tokens_as_ids: params.tokens_as_ids,
    };
    let object = if params.stream { "chat.completion.chunk" } else { "chat.completion" };
    let kind = ("chatcmpl", object);
    let streams = params.stream;
    Answers::new(&state, kind, generation, lengths, (&params, held), replies).respond(streams).await
}

/// Messages in reply to a conversation.
struct Replies {
    state: Arc<State>,
    /// Of each reply.
    parsers: Vec<ReplyParser>,
    /// Its ids, where they are to be returned.
    prompt: Option<Arc<[u32]>>,
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
