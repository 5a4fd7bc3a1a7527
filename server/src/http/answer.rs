//! Answers on their way out: as a whole, or piece by piece.

use super::aside::aside;
use super::body::Held;
use super::deltas::Deltas;
use super::error::ApiError;
use super::generation::{Delta, Generation};
use super::ids;
use super::logprobs::{PromptLogprobs, bounded};
use super::params::{Params, StreamUsage};
use super::sse::{self, Events, Frame};
use super::state::{State, now};
use super::usage::UsageReport;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// What an endpoint makes of what is generated.
pub(crate) trait Choices: Send + Unpin + 'static {
    type Choice: Serialize + Send + Sync + 'static;

    fn count(&self) -> usize;

    /// The beginning of an answer, before anything is generated: of a whole one, or the first event
    /// of a stream.
    fn begin(&self, index: usize, streams: bool) -> Self::Choice;

    /// Whether streams begin with such an event.
    fn has_beginning(&self) -> bool;

    /// An empty piece of a stream.
    fn piece(&self, index: usize) -> Self::Choice;

    fn extend(&mut self, choice: &mut Self::Choice, delta: Delta) -> Result<(), ApiError>;

    /// What whole answers have beside the choices.
    fn rest(self) -> Rest;
}

/// What a whole answer has beside its choices.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    pub(crate) prompt_token_ids: Option<Arc<[u32]>>,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}

/// What an answer and its pieces begin with.
#[derive(Serialize)]
struct Head<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
}

/// The answers to one request, one for each of its prompts and choices.
pub(crate) struct Answers<C> {
    /// [`Head`], written once since every token repeats it, and open to more fields.
    head: Vec<u8>,
    deltas: Deltas,
    wants_usage: StreamUsage,
    choices: C,
    has_begun: bool,
    /// The memory that a whole answer takes.
    held: Held,
    most_logprobs: usize,
}

impl<C: Choices> Answers<C> {
    /// Those that `generation` brings to prompts of these lengths. `kind` begins their names; the memory is
    /// that of whole answers.
    pub(crate) fn new(
        state: &State,
        (kind, object): (&str, &'static str),
        generation: Generation,
        prompts: impl Iterator<Item = usize>,
        (params, held): (&Params, Held),
        choices: C,
    ) -> Self {
        let id = ids::next(kind);
        let head = Head { id: &id, object, created: now(), model: state.name() };
        // Nothing of it fails to be written.
        let mut head = serde_json::to_vec(&head).unwrap_or_else(|_| b"{}".to_vec());
        head.pop();
        Self {
            head,
            deltas: Deltas::new(generation, prompts, params.choices),
            wants_usage: params.stream_usage,
            choices,
            has_begun: false,
            held,
            most_logprobs: state.limits.logprobs,
        }
    }

    /// As events as they come, or as one body at the end.
    pub(crate) async fn respond(self, streams: bool) -> Result<Response, ApiError> {
        if streams { Ok(sse::response(self)) } else { self.whole().await }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut told = 0;
        let begin = |index| self.choices.begin(index, false);
        let mut choices: Vec<C::Choice> = (0..self.choices.count()).map(begin).collect();
        while poll_fn(|context| self.deltas.poll_ready(context)).await? {
            while let Some(delta) = self.deltas.take()? {
                let more = delta.logprobs();
                told += more;
                bounded(told as u64, self.most_logprobs)?;
                self.held.take_logprobs(more)?;
                let choice = &mut choices[delta.index];
                self.choices.extend(choice, delta)?;
            }
        }
        let Self { head, deltas, choices: kind, held, .. } = self;
        let rest = kind.rest();
        let usage = deltas.usage().report();
        let write = move || {
            let Rest { prompt_token_ids, prompt_logprobs } = rest;
            let mut body = head;
            field(&mut body, "choices", &choices);
            field(&mut body, "usage", &usage);
            prompt_token_ids.iter().for_each(|ids| field(&mut body, "prompt_token_ids", &&ids[..]));
            prompt_logprobs.iter().for_each(|told| field(&mut body, "prompt_logprobs", told));
            body.push(b'}');
            body
        };
        // What is long keeps nobody else waiting.
        let body = match held.is_heavy() {
            true => aside(move || Ok::<_, ApiError>(write())).await?,
            false => write(),
        };
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        Ok((kind, body).into_response())
    }

    /// What an event that is not the last says of an answer's usage.
    fn usage_so_far(&self, index: usize) -> Option<UsageReport> {
        (self.wants_usage == StreamUsage::Each).then(|| self.deltas.usage().so_far(index))
    }

    fn event(&self, frame: &mut Frame, choices: &[C::Choice], usage: Option<UsageReport>) {
        frame.event(self.head.len(), |body| {
            body.extend_from_slice(&self.head);
            field(body, "choices", &choices);
            if self.wants_usage > StreamUsage::None {
                field(body, "usage", &usage);
            }
            body.push(b'}');
        });
    }
}

/// Adds a field to an object that has some.
fn field(body: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
    let start = body.len();
    // What is sent has no keys that are no strings, and memory takes all of it.
    if serde_json::to_writer(&mut *body, value).is_err() {
        body.truncate(start);
        body.extend_from_slice(b"null");
    }
}

impl<C: Choices> Events for Answers<C> {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut Frame,
    ) -> Poll<Result<bool, ApiError>> {
        if !std::mem::replace(&mut self.has_begun, true) && self.choices.has_beginning() {
            for index in 0..self.choices.count() {
                let usage = self.usage_so_far(index);
                self.event(frame, &[self.choices.begin(index, true)], usage);
            }
            return Poll::Ready(Ok(true));
        }
        // Not everything that comes is for the client.
        while frame.is_empty() {
            if !ready!(self.deltas.poll_ready(context))? {
                if self.wants_usage > StreamUsage::None {
                    self.event(frame, &[], Some(self.deltas.usage().report()));
                }
                return Poll::Ready(Ok(false));
            }
            while let Some(delta) = self.deltas.take()? {
                let usage = self.usage_so_far(delta.index);
                let mut choice = self.choices.piece(delta.index);
                self.choices.extend(&mut choice, delta)?;
                self.event(frame, &[choice], usage);
            }
        }
        Poll::Ready(Ok(true))
    }
}
