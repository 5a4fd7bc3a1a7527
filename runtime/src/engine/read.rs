//! Reading a step: which ids came, which requests end with them, and how.

use super::batching::{Engine, Row};
use super::constraint::TokenLogprobs;
use super::error::EngineError;
use super::request::RequestEvent;
use crate::words::{FinishReason, RequestId, out_of_range_advice};
use piecewise_ir::dtype::DType;
use piecewise_kernels::sampling::{Details, NO_ID};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

impl Engine {
    pub(super) fn read_oldest(
        &mut self,
        events: &mut Vec<RequestEvent>,
    ) -> Result<(), EngineError> {
        let Some(mut step) = self.in_flight.pop_front() else { return Ok(()) };
        let outputs = match self.model.read(&step.ticket) {
            Ok(outputs) => outputs,
            Err(error) => {
                self.in_flight.push_front(step);
                return Err(error.into());
            }
        };
        self.failures = 0;
        step.sampled.clear();
        step.details.clear();
        if let Some(output) = self.roles.sampled.filter(|_| !step.rows.is_empty()) {
            let ids = outputs.bytes(output)?.chunks_exact(4);
            step.sampled.extend(ids.map(|id| i32::from_le_bytes([id[0], id[1], id[2], id[3]])));
        }
        if let Some(output) = self.roles.details.filter(|_| step.wants_logprobs) {
            step.details.extend_from_slice(outputs.bytes(output)?);
        }
        let vocab = self.options.vocab;
        let mut bad = None;
        let mut ended = SmallVec::<[_; 16]>::new();
        let mut without_id = SmallVec::<[(RequestId, u64); 4]>::new();
        for (place, (row, &id)) in step.rows.iter().zip(&step.sampled).enumerate() {
            let Row { request, turn, tells } = *row;
            let Some(sequence) = self.sequences.get_mut(&request) else { continue };
            if sequence.turn != turn || without_id.iter().any(|(ended, _)| *ended == request) {
                continue;
            }
            if id == NO_ID && (tells.is_some() || sequence.pending > 0) {
                let position = tells.map_or(sequence.ids.len() as u64, |position| position + 1);
                without_id.push((request, position));
                continue;
            }
            if let Some(position) = tells {
                let details = Details::of_row(&step.details, place);
                let told = details.and_then(|details| sequence.tell(position, details));
                events.extend(told.map(|(id, logprobs)| RequestEvent::PromptToken {
                    request,
                    id,
                    logprobs,
                }));
                continue;
            }
            if sequence.pending == 0 {
                continue;
            }
            let valid = u32::try_from(id).ok().filter(|&id| u64::from(id) < vocab);
            let Some(id) = valid else {
                bad = bad.or(Some(EngineError::BadSample { request, id, vocab }));
                continue;
            };
            let accepted = match sequence.stops_at(id) {
                true => Ok(true),
                false => sequence.controls.accept(id),
            };
            let is_last = match accepted {
                Ok(is_last) => is_last,
                Err(message) => {
                    let message = Some(message.into_boxed_str());
                    ended.push((request, FinishReason::ConstraintFailed, message));
                    continue;
                }
            };
            sequence.ids.push(id);
            sequence.pending -= 1;
            sequence.generated += 1;
            sequence.publish(&mut self.pool);
            let wants = sequence.controls.logprobs.is_some();
            let details = Details::of_row(&step.details, place).filter(|_| wants);
            let logprobs = details.map(|details| Box::new(TokenLogprobs::of(details)));
            events.push(RequestEvent::Token { request, id, logprobs });
            let reason = if is_last {
                FinishReason::Stop
            } else if sequence.generated >= sequence.max_tokens {
                FinishReason::Length
            } else {
                continue;
            };
            ended.push((request, reason, None));
        }
        for (request, reason, message) in ended {
            self.finish(request, reason, message, events);
        }
        for (request, tokens) in without_id {
            self.end_without_id(request, tokens, events);
        }
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
        let times = self.model.step_times(&step.ticket);
        step.record.wall_us = times.map(|times| microseconds(times.wall));
        step.record.gpu_us = times.and_then(|times| times.gpu).map(microseconds);
        if let Some(observer) = &mut self.observer {
            observer(&step.record);
        }
        self.spare.push(step);
        if let Some(EngineError::BadSample { request, .. }) = bad {
            if let Some(sequence) = self.sequences.get(&request) {
                self.pool.forget(sequence.table.pages());
            }
            self.remove(request)?;
        }
        bad.map_or(Ok(()), Err)
    }

    /// Ends the present turn of a request, wherever it is, and says what went wrong; what it has in
    /// flight is dropped.
    pub(super) fn finish(
        &mut self,
        request: RequestId,
        reason: FinishReason,
        message: Option<Box<str>>,
        events: &mut Vec<RequestEvent>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        sequence.pending = 0;
        let (usage, keep) = (sequence.usage(), sequence.keep);
        events.push(RequestEvent::Finished { request, reason, message, usage });
        self.leave_queues(request);
        if keep { self.kept.push(request) } else { self.forget(request) }
    }

    /// Takes a request from those that run or wait, and what goes with that.
    fn leave_queues(&mut self, request: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        self.entries.extend(sequence.entry.take());
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        self.running.retain(|&other| other != request);
        self.waiting.retain(|&other| other != request);
    }

    /// Forgets a request, wherever it is, and gives back all that it has.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.leave_queues(request);
        self.kept.retain(|&other| other != request);
        let Some(mut sequence) = self.sequences.remove(&request) else { return };
        sequence.release(&mut self.pool, &mut self.slots);
        sequence.rows.iter().for_each(|given| self.embeddings.end_use(given.rows));
    }

    /// Ends every request whose deadline has passed.
    pub(super) fn finish_overdue(&mut self, events: &mut Vec<RequestEvent>) {
        while let Some(&(deadline, request)) = self.deadlines.first()
            && deadline <= Instant::now()
        {
            self.finish(request, FinishReason::Deadline, None, events);
        }
    }

    /// Ends a request whose logits after so many tokens gave no id. Nobody goes on from what it
    /// computed, the request itself neither, where it is kept.
    pub(super) fn end_without_id(
        &mut self,
        request: RequestId,
        tokens: u64,
        events: &mut Vec<RequestEvent>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        self.pool.forget(sequence.table.pages());
        let message = reason(tokens, sequence.controls_logits(), self.computes_in);
        sequence.release(&mut self.pool, &mut self.slots);
        self.bad_logits += 1;
        tracing::warn!("request {request} ends: {message}");
        self.finish(request, FinishReason::BadLogits, Some(message.into()), events);
    }
}

fn reason(tokens: u64, is_controlled: bool, computes_in: DType) -> String {
    let by = if is_controlled { ", with its mask, biases and penalties," } else { "" };
    let advice = out_of_range_advice(computes_in);
    let name = computes_in.name();
    format!(
        "after {tokens} tokens its logits{by} in {name} hold NaN or no finite largest value, so that no \
         token can be chosen; {advice}"
    )
}
