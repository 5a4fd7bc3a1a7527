//! The definition of sampling with all that a request may ask of it.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::{inputs, parameter_types, reference};
use crate::inputs::StepInput;
use crate::inputs::{CONTROL_WORDS, DETAIL_WORDS, mask_words, token_words};
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// [`Sample`](super::Sample) with biases, penalties, masks, `min_p` and log-probabilities. A row that
/// asks for none of it gets the token that [`Sample`](super::Sample) would give it.
///
/// Operands: those of [`Sample`](super::Sample); `controls i32 [R, 4]` and `penalties f32 [R, 4]`
/// ([`SampleControls`](super::SampleControls)); the states `masks i32 [M, W]`, `W` =
/// [`mask_words`] of V, and `tokens i32 [Q, X]`, `X` = [`token_words`] of V, in which it counts.
/// Results: the ids `i32 [R]`, and `i32 [R, DETAIL_WORDS]` ([`Details`](super::Details); zeros of
/// rows that want no log-probabilities or get [`NO_ID`](super::NO_ID)).
///
/// The logit of an id gets its bias, then, where it is of the prompt or was generated, is divided by
/// the penalty for repetition (multiplied where it is not above 0), then loses the penalty for
/// frequency times how often it was generated, and that for presence if it was. Ids that the mask
/// leaves out are -inf. Where one of the logits is NaN or +inf, as it comes or by then, or none is above
/// -inf, the row gets [`NO_ID`](super::NO_ID) and nothing is counted. Of what temperature makes of it, tokens remain that are at least `min_p`
/// times as likely as the likeliest, then top-k and top-p as in [`Sample`](super::Sample), of weights
/// that remain. Log-probabilities are of the logits as they come. A row may be given its id, so that
/// what a prompt goes on with is told of as if it had been sampled; no control then counts for its
/// logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlledSample;

/// The operand that it counts in.
pub(super) const TOKENS: usize = 9;

impl ControlledSample {
    /// What graphs call it.
    pub const NAME: &'static str = "piecewise.controlled_sample";

    /// What it is told of each step besides what [`Sample`](super::Sample) is told.
    pub fn inputs() -> [StepInput; 2] {
        inputs::controls()
    }
}

impl CustomOpDef for ControlledSample {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], _attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        let [logits, parameters @ .., controls, penalties, masks, tokens] = operands else {
            return Err("takes logits, five parameters, controls, penalties and two states".into());
        };
        let vocabulary = match &*logits.shape {
            [_, vocabulary] if logits.dtype == DType::F32 => vocabulary.as_constant(),
            _ => None,
        };
        let Some(vocabulary) = vocabulary else {
            return Err("logits must be f32 [R, V] with a constant V".to_owned());
        };
        let rows = &logits.shape[0];
        let of_rows = |dtype, width: usize| TensorType::new(dtype, [rows.clone(), width.into()]);
        if parameters != parameter_types(rows) {
            return Err("the parameters are those of piecewise.sample, each [R]".to_owned());
        }
        if *controls != of_rows(DType::I32, CONTROL_WORDS)
            || *penalties != of_rows(DType::F32, CONTROL_WORDS)
        {
            return Err("controls are i32 [R, 4], penalties f32 [R, 4]".to_owned());
        }
        for (name, state, words) in
            [("masks", masks, mask_words(vocabulary)), ("tokens", tokens, token_words(vocabulary))]
        {
            let fits = state.dtype == DType::I32
                && state.rank() == 2
                && state.shape[1].as_constant() == Some(words);
            if !fits {
                return Err(format!("{name} must be a state i32 [entries, {words}]"));
            }
        }
        let ids = TensorType::new(DType::I32, [rows.clone()]);
        Ok(vec![ids, of_rows(DType::I32, DETAIL_WORDS)])
    }

    fn mutates(&self) -> Vec<usize> {
        vec![TOKENS]
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::SlotMapped
    }

    fn evaluate(&self, operands: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        reference::evaluate(operands)
    }
}
