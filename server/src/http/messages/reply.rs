//! A reply as blocks: as a whole, or event by event.

use super::super::deltas::Deltas;
use super::super::error::ApiError;
use super::super::generation::{Delta, End, StopReason};
use super::super::ids;
use super::super::replying::Replying;
use super::super::sse::{self, Events, Frame};
use super::super::state::State;
use super::super::usage::UsageSum;
use super::blocks::{Block, Blocks, Piece, Step};
use super::manners;
use super::silence::Silence;
use crate::chat::{ReplyError, ReplyParser};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A message, whole or as it begins.
#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    #[serde(flatten)]
    ended: Ended,
    usage: Usage,
}

/// Why a reply has ended.
#[derive(Debug, Default, Serialize)]
struct Ended {
    stop_reason: Option<&'static str>,
    /// Of the client's, what did.
    stop_sequence: Option<String>,
}

/// What a reply took: what was found in the cache is no input that was read.
#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

/// An event, which has the name of its type.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    Ping,
    ContentBlockStart { index: usize, content_block: &'a Block },
    ContentBlockDelta { index: usize, delta: &'a Piece },
    ContentBlockStop { index: usize },
    MessageDelta { delta: &'a Ended, usage: Usage },
    MessageStop,
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }

    fn write(&self, frame: &mut Frame) {
        // Nothing of it fails to be written, and memory takes all of it.
        frame.named(self.name(), |body| drop(serde_json::to_writer(body, self)));
    }
}

/// A reply on its way.
pub(super) struct Reply {
    id: String,
    model: String,
    streams: bool,
    deltas: Deltas,
    parser: Option<ReplyParser>,
    shows_thoughts: bool,
    blocks: Blocks,
    ended: Ended,
    /// Since the last event of a stream; none before the first.
    silence: Option<Silence>,
    longest_silence: Duration,
}

impl Reply {
    pub(super) fn new(state: &State, replying: Replying) -> Self {
        let Replying { params, ids, generation, mut parsers, shows_thoughts, .. } = replying;
        Self {
            id: ids::next("msg"),
            model: state.name().to_owned(),
            streams: params.stream,
            deltas: Deltas::new(generation, [ids.len()].into_iter(), 1),
            parser: parsers.pop(),
            shows_thoughts,
            blocks: Blocks::default(),
            ended: Ended::default(),
            silence: None,
            longest_silence: state.limits.silence,
        }
    }

    pub(super) async fn respond(self) -> Result<Response, ApiError> {
        if self.streams { Ok(sse::response(self)) } else { self.whole().await }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut content = Vec::new();
        while poll_fn(|context| self.deltas.poll_ready(context)).await? {
            while let Some(delta) = self.deltas.take()? {
                self.read(delta)?.into_iter().for_each(|step| step.apply(&mut content));
            }
        }
        let ended = std::mem::take(&mut self.ended);
        Ok(Json(self.message(content, ended)).into_response())
    }

    fn message(&self, content: Vec<Block>, ended: Ended) -> Message<'_> {
        let Self { id, model, deltas, .. } = self;
        let (kind, role) = ("message", "assistant");
        Message { id, kind, role, model, content, ended, usage: Usage::of(deltas.usage()) }
    }

    /// What came of the blocks; all of them have ended where the reply has.
    fn read(&mut self, delta: Delta) -> Result<Vec<Step>, ApiError> {
        let failed = |error: ReplyError| ApiError::internal(error.to_string());
        let Some(parser) = &mut self.parser else { return Ok(Vec::new()) };
        let mut came = vec![parser.push(&delta.text).map_err(failed)?];
        if delta.end.is_some() {
            came.push(parser.finish().map_err(failed)?);
        }
        let mut steps = Vec::new();
        for mut came in came {
            if !self.shows_thoughts {
                came.reasoning.clear();
            }
            self.blocks.read(came, &mut steps);
        }
        if let Some(end) = delta.end {
            self.blocks.end(&mut steps);
            self.ended = Ended::of(end, parser.called_tools());
        }
        Ok(steps)
    }
}

impl Ended {
    fn of(End { reason, stop, .. }: End, called: bool) -> Self {
        match stop {
            // A call that it has cut short is none to be made.
            Some(StopReason::Text(text)) => {
                Self { stop_reason: Some("stop_sequence"), stop_sequence: Some(text) }
            }
            _ => {
                let reason = match reason {
                    "length" => "max_tokens",
                    // It goes on where the client sends it back.
                    "abort" => "pause_turn",
                    _ if called => "tool_use",
                    _ => "end_turn",
                };
                Self { stop_reason: Some(reason), stop_sequence: None }
            }
        }
    }
}

impl Usage {
    fn of(usage: &UsageSum) -> Self {
        let cached = usage.cached_tokens();
        Self {
            input_tokens: usage.prompt_tokens() as u64 - cached,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.generated_tokens(),
        }
    }
}

impl Events for Reply {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut Frame,
    ) -> Poll<Result<bool, ApiError>> {
        if self.silence.is_none() {
            self.silence = Some(Silence::new(self.longest_silence));
            let message = self.message(Vec::new(), Ended::default());
            Event::MessageStart { message }.write(frame);
            Event::Ping.write(frame);
            return Poll::Ready(Ok(true));
        }
        // Not everything that comes is for the client.
        while frame.is_empty() {
            let Poll::Ready(more) = self.deltas.poll_ready(context) else {
                ready!(self.silence.as_mut().map_or(Poll::Pending, |own| own.poll_end(context)));
                Event::Ping.write(frame);
                break;
            };
            if !more? {
                let usage = Usage::of(self.deltas.usage());
                Event::MessageDelta { delta: &self.ended, usage }.write(frame);
                Event::MessageStop.write(frame);
                return Poll::Ready(Ok(false));
            }
            while let Some(delta) = self.deltas.take()? {
                for step in self.read(delta)? {
                    let event = match &step {
                        Step::Start { index, block } => {
                            Event::ContentBlockStart { index: *index, content_block: block }
                        }
                        Step::Add { index, piece } => {
                            Event::ContentBlockDelta { index: *index, delta: piece }
                        }
                        Step::Stop { index } => Event::ContentBlockStop { index: *index },
                    };
                    event.write(frame);
                }
            }
        }
        self.silence.as_mut().into_iter().for_each(Silence::broken);
        Poll::Ready(Ok(true))
    }

    fn end(&self, frame: &mut Frame, error: Option<&ApiError>) {
        let error = error.map(|error| manners::body(error).to_string());
        error.iter().for_each(|error| {
            frame.named("error", |body| body.extend_from_slice(error.as_bytes()));
        });
    }
}
