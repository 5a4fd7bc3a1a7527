//! What the engine itself tells a graph of the batch.

use super::{Extent, StepInput};
use crate::roles;
use piecewise_ir::dtype::DType;
use std::iter::repeat_n;

/// Who declares these inputs, in errors.
pub const DECLARED_BY: &str = "the engine";

/// Ids with their feedback, positions, slots, the rows that want logits, and what stands for tokens
/// and where they lie.
pub fn engine_inputs() -> [StepInput; 8] {
    let tokens =
        |role, padding| StepInput::new(role, DType::I32, [Extent::of(roles::TOKENS)], padding);
    let rows = |role, padding| StepInput::new(role, DType::I32, [Extent::of(roles::ROWS)], padding);
    [
        tokens(roles::TOKEN_IDS, 0.0).filled(|batch, out| {
            out.extend(batch.ids().iter().copied());
            Ok(())
        }),
        tokens(roles::TOKEN_FEEDBACK, -1.0).filled(|batch, out| {
            out.extend(batch.sequences().flat_map(|sequence| {
                let entry = sequence.feedback().map_or(-1, |entry| entry as i32);
                repeat_n(entry, sequence.tokens() as usize)
            }));
            Ok(())
        }),
        tokens(roles::TOKEN_POSITIONS, 0.0).filled(|batch, out| {
            let positions = batch.sequences().flat_map(|sequence| sequence.positions());
            out.extend(positions.map(|position| position as i32));
            Ok(())
        }),
        StepInput::new(roles::SEQUENCE_SLOTS, DType::I32, [Extent::of(roles::SEQUENCES)], -1.0)
            .filled(|batch, out| {
                for (i, sequence) in batch.sequences().enumerate() {
                    let slot = sequence.slot().ok_or_else(|| {
                        format!(
                            "sequence {i} of the step has no state slot: it was removed, or never \
                             admitted"
                        )
                    })?;
                    out.push(slot as i32);
                }
                Ok(())
            }),
        rows(roles::LOGIT_ROWS, 0.0).filled(|batch, out| {
            let rows = batch.sequences().flat_map(|sequence| sequence.wanted_rows());
            out.extend(rows.map(|row| row as i32));
            Ok(())
        }),
        rows(roles::SAMPLE_SLOTS, -1.0).filled(|batch, out| {
            out.extend(batch.sequences().flat_map(|sequence| {
                let rows = sequence.logit_rows().count();
                let last = sequence.entry().map_or(-1, |entry| entry as i32);
                repeat_n(-1, rows.saturating_sub(1)).chain(repeat_n(last, rows.min(1)))
            }));
            Ok(())
        }),
        tokens(roles::TOKEN_EMBEDDINGS, -1.0).filled(|batch, out| {
            for sequence in batch.sequences() {
                let rows = sequence.values(roles::TOKEN_EMBEDDINGS).map_or(&[][..], |v| v.values);
                out.extend(rows.iter().copied());
                out.repeat(-1, sequence.tokens() as usize - rows.len());
            }
            Ok(())
        }),
        StepInput::new(
            roles::TOKEN_COORDINATES,
            DType::I32,
            [Extent::of(roles::TOKENS), Extent::Constant(3)],
            0.0,
        )
        .filled(|batch, out| {
            for sequence in batch.sequences() {
                let given = sequence.values(roles::TOKEN_COORDINATES);
                let (values, rest) = given.map_or((&[][..], 0), |v| (v.values, v.rest));
                out.extend(values.iter().copied());
                for position in sequence.positions().skip(values.len() / 3) {
                    out.repeat(position as i32 + rest, 3);
                }
            }
            Ok(())
        }),
    ]
}
