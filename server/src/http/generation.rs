//! The answers to one HTTP request, as they come from the engine.

use super::body::Held;
use super::error::ApiError;
use super::mailbox::{self, Letter, Mailbox};
use super::quota::Charge;
use crate::text::OutputText;
use piecewise_runtime::engine::{Request, TokenLogprobs};
use piecewise_runtime::engine_thread::{EngineHandle, Sink, Ticket, Update};
use piecewise_runtime::words::{FinishReason, Usage};
use serde::Serialize;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A request of its own for the engine, and what makes text of its ids.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) request: Request,
    /// `None` where there is no tokenizer.
    pub(crate) text: Option<OutputText>,
    /// Those of its stop ids that the client named, and is told of.
    pub(crate) named_stops: Arc<[u32]>,
    /// Whether the answer is what is told of the prompt, and nothing that is generated.
    pub(crate) is_of_prompt: bool,
}

/// What came of an answer.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// The choice that it belongs to, from 0.
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<TokenEntry>,
    /// Tokens of the prompt from the second on, where they are told of.
    pub(crate) prompt: Vec<(u32, Box<TokenLogprobs>)>,
    pub(crate) end: Option<End>,
}

impl Delta {
    /// How many log-probabilities it has, those of the likeliest ids among them.
    pub(crate) fn logprobs(&self) -> usize {
        let of = |logprobs: &TokenLogprobs| logprobs.top.len() + 1;
        let prompt = self.prompt.iter().map(|(_, logprobs)| of(logprobs)).sum::<usize>();
        let tokens = self.logprobs.iter().filter_map(|entry| entry.logprobs.as_deref());
        prompt + tokens.map(of).sum::<usize>()
    }
}

/// How likely a token was.
#[derive(Debug)]
pub(crate) struct TokenEntry {
    pub(crate) id: u32,
    /// Characters of the answer before it.
    pub(crate) offset: usize,
    /// None of the token that a text begins with.
    pub(crate) logprobs: Option<Box<TokenLogprobs>>,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: &'static str,
    /// What of the client's ended it, if anything did.
    pub(crate) stop: Option<StopReason>,
    pub(crate) usage: Usage,
}

/// What a client asked an answer to end with, as vLLM shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Id(u32),
    Text(String),
}

#[derive(Debug)]
struct Choice {
    ticket: Ticket,
    text: Option<OutputText>,
    stop_ids: Arc<[u32]>,
    named_stops: Arc<[u32]>,
    last: Option<u32>,
    stop: Option<String>,
    is_of_prompt: bool,
    is_open: bool,
}

/// Answers on their way. Dropped, their requests are removed before the next step.
#[derive(Debug)]
pub(crate) struct Generation {
    updates: Mailbox,
    /// Taken, and not yet looked at.
    batch: VecDeque<Letter>,
    choices: Vec<Choice>,
    open: usize,
    /// Of who has a key.
    charge: Option<Charge>,
}

impl Generation {
    /// Hands the parts in, so many `choices` for each prompt, and waits until the engine has them. What comes
    /// and is not taken is `unread` of the client: where it finds no memory, the answers are given up.
    pub(crate) async fn start(
        engine: &EngineHandle,
        parts: Vec<Part>,
        choices: usize,
        unread: Held,
    ) -> Result<Self, ApiError> {
        let length = |part: &Part| part.request.prompt.len() as u64;
        let prompts = parts.chunks(choices).filter_map(|of_prompt| of_prompt.first());
        let room = |part: &Part| engine.options().max_seq_len.saturating_sub(length(part));
        let most = parts.iter().map(|part| part.request.max_tokens.min(room(part)));
        let charge = unread.client().charge(prompts.map(length).sum(), most.sum())?;
        let (updates, senders) = mailbox::new(parts.len(), unread);
        let (mut requests, mut rest) = (Vec::new(), Vec::new());
        for (part, sender) in parts.into_iter().zip(senders) {
            let Part { request, text, named_stops, is_of_prompt } = part;
            rest.push((text, Arc::clone(&request.stop_ids), named_stops, is_of_prompt));
            let sink: Sink = Box::new(move |update| sender.send(update));
            requests.push((request, sink));
        }
        let prompts = requests.len() / choices.max(1);
        let tickets = engine.submit_all(requests)?;
        engine.metrics().asked(prompts, choices as u64);
        let choice = |(ticket, (text, stop_ids, named_stops, is_of_prompt))| Choice {
            ticket,
            text,
            stop_ids,
            named_stops,
            last: None,
            stop: None,
            is_of_prompt,
            is_open: true,
        };
        let choices = Vec::from_iter(tickets.into_iter().zip(rest).map(choice));
        let open = choices.len();
        let mut generation = Self { updates, batch: VecDeque::new(), choices, open, charge };
        let (mut accepted, mut came, mut early) = (0, VecDeque::new(), VecDeque::new());
        while accepted < open {
            poll_fn(|context| generation.updates.poll_take(context, &mut came)).await?;
            for letter in came.drain(..) {
                match letter {
                    (_, Update::Failed(failure)) => return Err(ApiError::from(&failure)),
                    (_, Update::Accepted { .. }) => accepted += 1,
                    letter => early.push_back(letter),
                }
            }
        }
        generation.batch = early;
        Ok(generation)
    }

    /// Waits for something to come of an answer. Whether it did: nothing does once every answer has
    /// ended.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ApiError>> {
        if self.open == 0 || !self.batch.is_empty() {
            return Poll::Ready(Ok(self.open > 0));
        }
        ready!(self.updates.poll_take(context, &mut self.batch))?;
        // What came of an answer is one delta, where others have some beside it.
        self.batch.make_contiguous().sort_by_key(|(index, _)| *index);
        Poll::Ready(Ok(true))
    }

    /// What has come of the next answer; nothing once all was taken of what is there.
    pub(crate) fn take(&mut self) -> Result<Option<Delta>, ApiError> {
        while let Some(&(index, _)) = self.batch.front() {
            let mut delta = Delta { index, ..Delta::default() };
            while let Some((_, update)) = self.batch.pop_front_if(|(other, _)| *other == index) {
                self.apply(index, update, &mut delta)?;
            }
            let Delta { text, ids, prompt, end, .. } = &delta;
            if end.is_some() || !(text.is_empty() && ids.is_empty() && prompt.is_empty()) {
                return Ok(Some(delta));
            }
        }
        Ok(None)
    }

    fn apply(&mut self, index: usize, update: Update, delta: &mut Delta) -> Result<(), ApiError> {
        let Some(choice) = self.choices.get_mut(index) else { return Ok(()) };
        let failed = |error| ApiError::internal(format!("the text can't be made: {error}"));
        match update {
            Update::PromptToken { id, logprobs } => delta.prompt.push((id, logprobs)),
            // What comes after a stop text, or a prompt that is all there is to be, is nobody's.
            Update::Token { .. }
                if choice.is_of_prompt || choice.stop.is_some() || !choice.is_open => {}
            Update::Token { id, logprobs } => {
                choice.last = Some(id);
                delta.ids.push(id);
                self.charge.iter_mut().for_each(Charge::note);
                let mut offset = 0;
                let is_stop = choice.stop_ids.contains(&id);
                if let Some(text) = choice.text.as_mut().filter(|t| t.keeps_stops() || !is_stop) {
                    let piece = text.push(id).map_err(failed)?;
                    match delta.text.is_empty() {
                        true => delta.text = piece.text,
                        false => delta.text.push_str(&piece.text),
                    }
                    offset = piece.offset;
                    choice.stop = piece.stop;
                }
                delta.logprobs.extend(logprobs.map(|logprobs| TokenEntry {
                    id,
                    offset,
                    logprobs: Some(logprobs),
                }));
                if choice.stop.is_some() {
                    choice.ticket.end();
                }
            }
            Update::Finished { reason, message, usage } if choice.is_open => {
                choice.is_open = false;
                self.open -= 1;
                let rest = choice.text.as_mut().filter(|_| choice.stop.is_none());
                if let Some(text) = rest {
                    let piece = text.finish().map_err(failed)?;
                    delta.text.push_str(&piece.text);
                    choice.stop = piece.stop;
                }
                let by_id = choice
                    .last
                    .filter(|id| reason == FinishReason::Stop && choice.named_stops.contains(id));
                let by_text = choice.stop.take().map(StopReason::Text);
                let stop = by_text.or(by_id.map(StopReason::Id));
                let reason = match reason {
                    _ if stop.is_some() => "stop",
                    // Who asks again for what can't be kept to gets no further.
                    FinishReason::ConstraintFailed => {
                        let message = message.as_deref().unwrap_or("nothing may come next");
                        return Err(ApiError::bad_request(format!("the answer ended: {message}")));
                    }
                    FinishReason::RowsLost | FinishReason::BadLogits => {
                        let message = message.as_deref().unwrap_or("what it brought was lost");
                        return Err(ApiError::internal(format!("the answer ended: {message}")));
                    }
                    _ if choice.is_of_prompt => "length",
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                    FinishReason::Deadline => "abort",
                };
                delta.end = Some(End { reason, stop, usage });
            }
            Update::Failed(failure) => return Err(ApiError::from(&failure)),
            Update::Accepted { .. } | Update::Preempted | Update::Finished { .. } => {}
        }
        Ok(())
    }
}
