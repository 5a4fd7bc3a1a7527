//! Answers on their way out: as a whole, or piece by piece.

use super::error::ApiError;
use super::generation::{Delta, Generation};
use super::ids;
use super::logprobs::PromptLogprobs;
use super::params::Params;
use super::sse::{self, Events, Frame};
use super::state::{State, now};
use super::usage::{UsageReport, UsageSum};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// What an endpoint makes of what is generated.
pub(crate) trait Choices: Send + 'static {
    type Choice: Serialize + Send + Sync;

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
#[derive(Debug, Default, Serialize)]
pub(crate) struct Rest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Serialize)]
struct Answer<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    /// Of pieces, null until the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageReport>>,
    #[serde(flatten)]
    rest: Option<Rest>,
}

/// Answers to a request.
pub(crate) struct Answers<C> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    generation: Generation,
    usage: UsageSum,
    include_usage: bool,
    choices: C,
    has_begun: bool,
}

impl<C: Choices> Answers<C> {
    /// Those that `generation` brings to prompts of these lengths. `kind` begins their names.
    pub(crate) fn new(
        state: &State,
        (kind, object): (&str, &'static str),
        generation: Generation,
        prompts: impl ExactSizeIterator<Item = usize>,
        params: &Params,
        choices: C,
    ) -> Self {
        Self {
            id: ids::next(kind),
            object,
            created: now(),
            model: state.name().to_owned(),
            generation,
            usage: UsageSum::new(prompts, params.choices),
            include_usage: params.include_usage,
            choices,
            has_begun: false,
        }
    }

    /// The response.
    pub(crate) async fn respond(self, streams: bool) -> Result<Response, ApiError> {
        match streams {
            true => Ok(sse::response(self)),
            false => self.whole().await,
        }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let begin = |index| self.choices.begin(index, false);
        let mut choices: Vec<C::Choice> = (0..self.choices.count()).map(begin).collect();
        loop {
            let deltas = self.generation.next().await?;
            if deltas.is_empty() {
                break;
            }
            for delta in deltas {
                self.usage.add(&delta);
                let choice = &mut choices[delta.index];
                self.choices.extend(choice, delta)?;
            }
        }
        let Self { id, object, created, model, .. } = self;
        let usage = Some(Some(self.usage.report()));
        let rest = Some(self.choices.rest());
        let (id, model, choices) = (&*id, &*model, &*choices);
        let answer = Answer { id, object, created, model, choices, usage, rest };
        Ok(axum::Json(&answer).into_response())
    }

    fn event(&self, frame: &mut Frame, choices: &[C::Choice], usage: Option<UsageReport>) {
        let Self { id, object, created, model, .. } = self;
        let usage = self.include_usage.then_some(usage);
        let (object, created) = (*object, *created);
        frame.event(&Answer { id, object, created, model, choices, usage, rest: None });
    }
}

impl<C: Choices> Events for Answers<C> {
    async fn next(&mut self, frame: &mut Frame) -> Result<bool, ApiError> {
        if !std::mem::replace(&mut self.has_begun, true) && self.choices.has_beginning() {
            for index in 0..self.choices.count() {
                self.event(frame, &[self.choices.begin(index, true)], None);
            }
            return Ok(true);
        }
        let deltas = self.generation.next().await?;
        if deltas.is_empty() {
            if self.include_usage {
                self.event(frame, &[], Some(self.usage.report()));
            }
            return Ok(false);
        }
        for delta in deltas {
            self.usage.add(&delta);
            let mut choice = self.choices.piece(delta.index);
            self.choices.extend(&mut choice, delta)?;
            self.event(frame, &[choice], None);
        }
        Ok(true)
    }
}
