//! How a sequence samples, and what the op is told of it.

use crate::inputs::{Element, Extent, SequenceView, StepInput};
use crate::roles;

/// How the token after a row is chosen.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Only so many of the largest logits are drawn from; 0 is off.
    pub top_k: u32,
    /// Only the largest logits whose probabilities add up to this are drawn from; 1 is off.
    pub top_p: f32,
    /// Only tokens at least so likely, as a share of the likeliest one's probability, are drawn from;
    /// 0 is off.
    pub min_p: f32,
    /// Taken from the logit of every id that was generated; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logit of an id for each time that it was generated; 0 is off.
    pub frequency_penalty: f32,
    /// What positive logits of ids of the prompt and of generated ones are divided by, and negative
    /// ones multiplied with; 1 is off.
    pub repetition_penalty: f32,
    /// With the position, the key of every draw.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// The inputs of [`Sample`](super::Sample).
pub(super) fn inputs() -> [StepInput; 5] {
    [
        of_each_row(roles::SAMPLE_TEMPERATURE, 0.0, |s| s.temperature),
        of_each_row(roles::SAMPLE_TOP_K, 0.0, |s| i32::try_from(s.top_k).unwrap_or(i32::MAX)),
        of_each_row(roles::SAMPLE_TOP_P, 1.0, |s| s.top_p),
        of_each_row(roles::SAMPLE_SEED, 0.0, |s| s.seed as i64),
        rows::<i32>(roles::SAMPLE_POSITION, 0.0).filled(|batch, out| {
            for sequence in batch.sequences() {
                let end = sequence.length();
                let rows = sequence.logit_rows().count() as u64;
                out.extend((end - rows..end).map(|position| position as i32 + 1));
            }
            Ok(())
        }),
    ]
}

fn rows<T: Element>(role: &'static str, padding: f64) -> StepInput {
    StepInput::new(role, T::DTYPE, [Extent::of(roles::ROWS)], padding)
}

/// A parameter of the sequence that each row belongs to.
fn of_each_row<T: Element>(
    role: &'static str,
    padding: f64,
    parameter: fn(Sampling) -> T,
) -> StepInput {
    rows::<T>(role, padding).filled(move |batch, out| {
        let of = |sequence: SequenceView<'_>| parameter(sequence.sampling());
        for sequence in batch.sequences() {
            out.repeat(of(sequence), sequence.logit_rows().count());
        }
        Ok(())
    })
}
