//! What the ops are told of each step: how its rows sample.

use crate::inputs::{CONTROL_WORDS, Sampling};
use crate::inputs::{Element, Extent, StepInput};
use crate::roles;
use piecewise_ir::dtype::DType;
use std::iter::repeat_n;

/// What each row is sampled by: temperature, cuts and seeds.
pub(super) fn parameters() -> [StepInput; 5] {
    [
        of_each_row(roles::SAMPLE_TEMPERATURE, 0.0, |s| s.temperature),
        of_each_row(roles::SAMPLE_TOP_K, 0.0, |s| i32::try_from(s.top_k).unwrap_or(i32::MAX)),
        of_each_row(roles::SAMPLE_TOP_P, 1.0, |s| s.top_p),
        of_each_row(roles::SAMPLE_SEED, 0.0, |s| s.seed as i64),
        rows::<i32>(roles::SAMPLE_POSITION, 0.0).filled(|batch, out| {
            let positions = batch.sequences().flat_map(|sequence| {
                let end = sequence.length();
                end - sequence.logit_rows().count() as u64..end
            });
            out.extend(positions.map(|position| position as i32 + 1));
            Ok(())
        }),
    ]
}

/// The inputs of [`ControlledSample`](super::ControlledSample) that [`Sample`](super::Sample) has
/// not: words of controls `i32 [R, 4]`, and `f32 [R, 4]` of the share of the likeliest token's
/// probability that is too little, and the penalties for presence, frequency and repetition.
pub(super) fn controls() -> [StepInput; 2] {
    let shape = || [Extent::of(roles::ROWS), Extent::Constant(CONTROL_WORDS as u64)];
    [
        StepInput::new(roles::SAMPLE_CONTROLS, DType::I32, shape(), 0.0).filled(|batch, out| {
            for sequence in batch.sequences() {
                for controls in sequence.row_controls() {
                    out.extend(controls.words());
                }
            }
            Ok(())
        }),
        StepInput::new(roles::SAMPLE_PENALTIES, DType::F32, shape(), 0.0).filled(|batch, out| {
            for sequence in batch.sequences() {
                let s = sequence.sampling();
                let penalties =
                    [s.min_p, s.presence_penalty, s.frequency_penalty, s.repetition_penalty];
                for _ in sequence.logit_rows() {
                    out.extend(penalties);
                }
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
        out.extend(batch.sequences().flat_map(|sequence| {
            repeat_n(parameter(sequence.sampling()), sequence.logit_rows().count())
        }));
        Ok(())
    })
}
