//! What a turn of a request asks of sampling besides its parameters.

use super::constraint::TokenConstraint;
use super::request::Request;
use piecewise_kernels::sampling::{SampleControls, mask_words};

/// What a turn asks for.
#[derive(Debug, Default)]
pub(super) struct TurnControls {
    pub logit_bias: Vec<(u32, f32)>,
    pub logprobs: Option<u32>,
    pub prompt_logprobs: Option<u32>,
    /// Rows of the prompt whose following id was told of.
    pub told: u64,
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// The ids that may come next, and after how many generated ones.
    pub mask: Vec<u32>,
    masked: Option<u64>,
    /// Whether the row of its entry holds what it goes by.
    pub is_written: bool,
    /// What its row of the next step asks for.
    pub now: SampleControls,
}

impl TurnControls {
    pub(super) fn of(request: &mut Request) -> Self {
        Self {
            logit_bias: std::mem::take(&mut request.logit_bias),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            constraint: request.constraint.take(),
            ..Self::default()
        }
    }

    /// Takes an id that is no stop id; whether it is the last.
    pub(super) fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.constraint.as_mut().map_or(Ok(false), |constraint| constraint.accept(id))
    }

    /// Whether nobody knows which ids may come after `generated` ones, and something says so.
    pub(super) fn awaits_mask(&self, generated: u64) -> bool {
        self.constraint.is_some() && self.masked != Some(generated)
    }

    /// Finds out which ids may come after `generated` ones.
    pub(super) fn ask(&mut self, generated: u64, vocabulary: u64) -> Result<(), String> {
        let Some(constraint) = &mut self.constraint else { return Ok(()) };
        self.mask.clear();
        self.mask.resize(mask_words(vocabulary) as usize, 0);
        constraint.allowed(&mut self.mask)?;
        self.masked = Some(generated);
        match self.mask.iter().all(|word| *word == 0) {
            true => Err("it allows no id to come next".to_owned()),
            false => Ok(()),
        }
    }
}
