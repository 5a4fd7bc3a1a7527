//! What requests ask of sampling besides its parameters: whether that can be, and how a step is told.

use super::batching::Engine;
use super::error::EngineError;
use super::masks::Asking;
use super::request::{EngineOptions, Request, RequestEvent};
use super::sequence::Sequence;
use crate::batch::{RoleMap, Sampling};
use crate::words::FinishReason;
use piecewise_backend::device::DeviceError;
use piecewise_kernels::sampling::{MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS, SampleControls};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::fmt::Display;

fn counts(sampling: Sampling) -> bool {
    let Sampling { presence_penalty, frequency_penalty, repetition_penalty, .. } = sampling;
    presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0
}

impl Request {
    /// Refuses what is out of range, and what the graph can't do.
    pub(super) fn check_controls(
        &self,
        options: &EngineOptions,
        roles: &RoleMap,
    ) -> Result<(), EngineError> {
        let Sampling {
            min_p,
            presence_penalty: presence,
            frequency_penalty: frequency,
            repetition_penalty: repetition,
            ..
        } = self.sampling;
        let [of_ids, of_prompt] = [self.logprobs, self.prompt_logprobs].map(|n| n.unwrap_or(0));
        let biased: BTreeSet<u32> = self.logit_bias.iter().map(|(id, _)| *id).collect();
        let vocab = options.vocab;
        let fits = |&(id, bias): &(u32, f32)| u64::from(id) < vocab && bias.is_finite();
        let has_good_bias = self.logit_bias.iter().all(fits)
            && biased.len() == self.logit_bias.len()
            && biased.len() <= MAX_LOGIT_BIASES;
        let biases = match &*self.logit_bias {
            many if many.len() > 4 => format!("{} ids", many.len()),
            few => format!("{few:?}"),
        };
        let good_min_p = (0.0..=1.0).contains(&min_p);
        let good_repetition = repetition > 0.0 && repetition.is_finite();
        let finite = "it must be a finite number; 0 is off";
        let above = "it must be a finite number above 0; 1 is off";
        let bias = "it must give up to 1024 of the model's ids a finite bias, each id once";
        let few = "it must be at most 20";
        let is_told = self.prompt_logprobs.is_some();
        // What is asked for, whether it is in range, and what would be.
        let asked: [(_, bool, bool, &dyn Display, _); 8] = [
            ("min_p", min_p != 0.0, good_min_p, &min_p, "it must be from 0 (off) to 1"),
            ("presence_penalty", presence != 0.0, presence.is_finite(), &presence, finite),
            ("frequency_penalty", frequency != 0.0, frequency.is_finite(), &frequency, finite),
            ("repetition_penalty", repetition != 1.0, good_repetition, &repetition, above),
            ("logit_bias", !self.logit_bias.is_empty(), has_good_bias, &biases, bias),
            ("logprobs", self.logprobs.is_some(), of_ids <= MAX_TOP_LOGPROBS, &of_ids, few),
            ("prompt_logprobs", is_told, of_prompt <= MAX_TOP_LOGPROBS, &of_prompt, few),
            ("constraint", self.constraint.is_some(), true, &"one", ""),
        ];
        for (parameter, is_asked, is_good, value, expected) in asked {
            let expected = match (is_asked, is_good) {
                (false, _) => continue,
                (true, false) => expected,
                (true, true) if roles.has_controls() => continue,
                (true, true) => {
                    "this model's graph does not do that; build it with sampling_controls = true, or \
                     sample by `StepInputs::sample_controlled` in a graph of your own"
                }
            };
            return Err(EngineError::Parameter { parameter, value: value.to_string(), expected });
        }
        Ok(())
    }
}

impl Sequence {
    /// Whether it goes by what came before, or by biases.
    fn weighs(&self) -> bool {
        counts(self.sampling) || !self.controls.logit_bias.is_empty()
    }

    /// Whether its ids are chosen by other logits than the model gives.
    pub(super) fn controls_logits(&self) -> bool {
        self.weighs() || self.controls.constraint.is_some()
    }
}

impl Engine {
    /// Asks the constraints of what is planned which ids may come. Requests whose constraint fails
    /// end, and the others are planned as they were.
    pub(super) fn ask_constraints(&mut self, events: &mut Vec<RequestEvent>) {
        let Self { sample_states: Some(states), plan, sequences, masks, .. } = self else { return };
        for planned in &*plan {
            let Some(sequence) = sequences.get_mut(&planned.request) else { continue };
            let generated = sequence.generated;
            if planned.tokens == sequence.due() && sequence.controls.awaits_mask(generated) {
                let controls = std::mem::take(&mut sequence.controls);
                let (request, answer) = (planned.request, Ok(()));
                masks.asking.push(Asking { request, generated, controls, answer });
            }
        }
        masks.make(states.vocabulary);
        let mut failed = SmallVec::<[_; 4]>::new();
        for Asking { request, controls, answer, .. } in masks.asking.drain(..) {
            if let Some(sequence) = sequences.get_mut(&request) {
                sequence.controls = controls;
            }
            failed.extend(answer.err().map(|message| (request, message)));
        }
        for (request, message) in failed {
            self.plan.retain(|planned| planned.request != request);
            let reason = FinishReason::ConstraintFailed;
            self.finish(request, reason, Some(message.into()), events);
        }
    }

    /// Enqueues what the planned rows go by and notes what they ask for; whether one of them wants
    /// log-probabilities.
    pub(super) fn write_controls(&mut self) -> Result<bool, DeviceError> {
        let Self { sample_states, sequences, plan, model, .. } = self;
        let Some(states) = sample_states else { return Ok(false) };
        let (mut masks, mut wants_logprobs) = (0, false);
        for planned in &*plan {
            let Some(sequence) = sequences.get_mut(&planned.request) else { continue };
            let mut now = SampleControls::default();
            wants_logprobs |= sequence.tells_prompt(planned.tokens);
            if planned.tokens == sequence.due() {
                let (weighs, counts) = (sequence.weighs(), counts(sequence.sampling));
                if let (true, Some(entry)) = (weighs, sequence.entry) {
                    if !sequence.controls.is_written {
                        let (prompt, generated) = sequence.ids.split_at(sequence.prompt as usize);
                        let biases = &sequence.controls.logit_bias;
                        let known = [prompt, generated];
                        states.write_tokens(model.device_mut(), entry, known, biases)?;
                        sequence.controls.is_written = true;
                    }
                    (now.tokens, now.counts) = (Some(entry), counts);
                }
                if sequence.controls.constraint.is_some() {
                    now.mask = Some(masks);
                    masks += 1;
                }
                now.logprobs = sequence.controls.logprobs;
                wants_logprobs |= now.logprobs.is_some();
            }
            sequence.controls.now = now;
        }
        if masks > 0 {
            let masked = plan.iter().filter_map(|planned| sequences.get(&planned.request));
            let masked = masked.filter(|sequence| sequence.controls.now.mask.is_some());
            let masked = masked.map(|sequence| &*sequence.controls.mask);
            states.write_masks(model.device_mut(), masked)?;
        }
        Ok(wants_logprobs)
    }
}
