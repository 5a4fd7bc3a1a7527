//! A step: plan and submit the next, then read the one before.

use super::batching::{Engine, InFlight, Row};
use super::error::EngineError;
use super::request::RequestEvent;
use super::schedule::Schedule;
use super::sequence::Planned;
use crate::batch::ChunkRows;
use crate::words::{POISON, StepMode};
use piecewise_backend::artifact::PieceSize;
use piecewise_planner::IterationRecord;
use std::borrow::Cow;

impl Engine {
    /// Runs a step, and sees to it that what fails costs time alone: a step that failed is tried
    /// again, and a device that was lost is opened anew.
    pub(super) fn step_over_failures(
        &mut self,
        events: &mut Vec<RequestEvent>,
    ) -> Result<bool, EngineError> {
        if self.model.is_lost() {
            self.recover(events)?;
        }
        match self.try_step(events) {
            Err(error) if error.is_lost() || error.is_of_device() => self.mend(error, events),
            other => other,
        }
    }

    /// Plans, submits and reads what is due. A step that could not be submitted is taken back.
    fn try_step(&mut self, events: &mut Vec<RequestEvent>) -> Result<bool, EngineError> {
        self.finish_overdue(events);
        while let Schedule::ReadFirst = self.schedule(events)? {
            self.read_oldest(events)?;
        }
        self.ask_constraints(events);
        let submitted = !self.plan.is_empty();
        if submitted && let Err(error) = self.submit() {
            if !error.is_lost() {
                self.take_back_plan(&error, events)?;
            }
            return Err(self.blame(error)?);
        }
        let ahead = usize::from(submitted && self.options.run_ahead);
        while self.in_flight.len() > ahead {
            self.read_oldest(events)?;
        }
        self.tell_watchers();
        Ok(self.has_work())
    }

    /// Forgets a step that could not be submitted. What is in flight is read first: after that no
    /// sequence goes on from an entry of sampled ids that the failed step may have written. Slots
    /// that it may have changed are given back, so that their sequences are computed again.
    fn take_back_plan(
        &mut self,
        error: &EngineError,
        events: &mut Vec<RequestEvent>,
    ) -> Result<(), EngineError> {
        if matches!(error, EngineError::Fill(_)) {
            return Ok(());
        }
        while !self.in_flight.is_empty() {
            self.read_oldest(events)?;
        }
        // The failed step may have counted ids that were not sampled.
        self.sequences.values_mut().for_each(|sequence| sequence.controls.is_written = false);
        while let Some(Planned { request, .. }) = self.plan.pop() {
            let Self { running, sequences, pool, slots, entries, .. } = self;
            let Some(sequence) = sequences.get_mut(&request).filter(|s| s.slot.is_some()) else {
                continue;
            };
            let Some(at) = running.iter().position(|&id| id == request) else { continue };
            running.remove(at);
            sequence.release(pool, slots);
            entries.extend(sequence.entry.take());
            self.wait_first(request);
        }
        Ok(())
    }

    /// Removes the request whose part of a step can't be filled, and names it: the next step goes
    /// without it.
    fn blame(&mut self, error: EngineError) -> Result<EngineError, EngineError> {
        if !matches!(error, EngineError::Fill(_)) {
            return Ok(error);
        }
        let Self { plan, sequences, batch, .. } = self;
        let request = plan.iter().map(|planned| (planned.request, planned.tokens));
        let request = request.filter(|(request, tokens)| {
            let Some(sequence) = sequences.get(request) else { return false };
            batch.clear();
            sequence.bring(*tokens, batch);
            batch.view().is_err()
        });
        let Some((request, _)) = request.min_by_key(|(request, _)| *request) else {
            return Ok(error);
        };
        self.remove(request)?;
        Ok(EngineError::OfRequest { request, source: Box::new(error) })
    }

    fn submit(&mut self) -> Result<(), EngineError> {
        if let Some(poison) = &self.poison {
            let sequences = self.sequences.values();
            let live = sequences.map(|sequence| (&sequence.table, sequence.computed));
            poison.fill(self.model.device_mut(), &self.pool, live)?;
            self.slots.fill_free(self.model.device_mut(), POISON)?;
            self.embeddings.fill_free(self.model.device_mut(), POISON)?;
        }
        let wants_logprobs = self.write_controls()?;
        let spare = self.spare.pop().map(|spare| (spare.rows, spare.sampled, spare.details));
        let (mut rows, mut sampled, details) = spare.unwrap_or_default();
        rows.clear();
        let most = self.model.max_logit_rows().min(self.options.max_num_tokens) as usize;
        rows.reserve(most);
        sampled.reserve(most);
        let (mut context_tokens, mut generation_requests) = (0, 0);
        self.batch.clear();
        for planned in &self.plan {
            let Some(sequence) = self.sequences.get(&planned.request) else { continue };
            let samples = planned.tokens == sequence.due();
            let wanted = sequence.bring(planned.tokens, &mut self.batch);
            if sequence.is_decoding() {
                generation_requests += 1;
            } else {
                context_tokens += planned.tokens;
            }
            let (request, turn) = (planned.request, sequence.turn);
            if let ChunkRows::Told(_) = wanted {
                let told = planned.tokens - u64::from(samples);
                let positions = sequence.computed..sequence.computed + told;
                rows.extend(positions.map(|at| Row { request, turn, tells: Some(at) }));
            }
            rows.extend(samples.then_some(Row { request, turn, tells: None }));
        }
        if let Some(output) = self.roles.details {
            self.model.read_back(output, wants_logprobs);
        }
        let ticket = self.model.submit(&self.batch.step()?.data())?;
        for planned in &self.plan {
            let Some(sequence) = self.sequences.get_mut(&planned.request) else { continue };
            let samples = planned.tokens == sequence.due();
            sequence.computed += planned.tokens;
            sequence.pending += u64::from(samples);
            sequence.publish(&mut self.pool);
        }
        let query_length = self.batch.query_length().filter(|_| context_tokens == 0);
        let report = self.model.last_step();
        let size = report.and_then(|r| match (query_length, r.sizes.tokens) {
            (_, PieceSize::General(_)) => None,
            (Some(q), size) => Some(size.rows() / q),
            (None, size) => Some(size.rows()),
        });
        let fallback = report.and_then(|r| r.fallback);
        let record = IterationRecord {
            context_tokens: count(context_tokens),
            generation_requests: count(generation_requests),
            sequences: count(self.batch.sequences()),
            rows: count(self.batch.rows()),
            tokens: Some(count(self.batch.tokens())),
            query_length: query_length.map(count),
            mode: report.map_or(StepMode::None, |r| r.mode),
            size: size.map(count),
            fallback: fallback.map(|reason| Cow::Borrowed(reason.name())),
            gpu_us: None,
            wall_us: None,
        };
        self.in_flight.push_back(InFlight {
            ticket,
            record,
            rows,
            sampled,
            details,
            wants_logprobs,
        });
        Ok(())
    }
}

/// A count of a step, which the bounds of a model keep far below the limit.
pub(super) fn count(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
