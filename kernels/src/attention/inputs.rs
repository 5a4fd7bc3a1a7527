//! What paged attention is told of the batch.

use crate::inputs::PAGE_ROWS;
use crate::inputs::{Extent, SequenceView, StepInput};
use crate::roles;
use piecewise_ir::dtype::DType;

/// The inputs of [`PagedAttention`](super::PagedAttention) and of the scatters that write its
/// keys and values. Slots name no row of a position before the step's own tokens: those rows are read
/// before the kernels ahead are done.
pub(super) fn inputs() -> [StepInput; 5] {
    let of_each = |role, number: fn(&SequenceView<'_>) -> u64| {
        let shape = [Extent::of(roles::SEQUENCES)];
        StepInput::new(role, DType::I32, shape, 0.0).filled(move |batch, out| {
            out.extend(batch.sequences().map(|sequence| number(&sequence) as i32));
            Ok(())
        })
    };
    let table = [Extent::of(roles::SEQUENCES), Extent::AnyConstant];
    [
        StepInput::new(roles::KV_SLOTS, DType::I32, [Extent::of(roles::TOKENS)], -1.0).filled(
            |batch, out| {
                out.extend(batch.sequences().flat_map(|sequence| {
                    let row = move |at| sequence.page_row(at).map_or(-1, |row| row as i32);
                    sequence.positions().map(row)
                }));
                Ok(())
            },
        ),
        StepInput::new(roles::KV_BLOCK_TABLE, DType::I32, table, 0.0).filled(|batch, out| {
            // Attention reads no page past the length.
            let used = |sequence: &SequenceView<'_>| {
                sequence.pages().len().min(sequence.length().div_ceil(PAGE_ROWS) as usize)
            };
            out.shorten_rows(batch.sequences().map(|s| used(&s)).max().unwrap_or(0));
            let columns = out.dim(1);
            for sequence in batch.sequences() {
                let pages = &sequence.pages()[..used(&sequence).min(columns)];
                out.extend(pages.iter().map(|&page| page as i32));
                out.repeat(0, columns - pages.len());
            }
            Ok(())
        }),
        of_each(roles::KV_LENGTHS, |sequence| sequence.length()),
        of_each(roles::QUERY_STARTS, |sequence| sequence.token_rows().start),
        of_each(roles::QUERY_LENGTHS, |sequence| sequence.tokens()),
    ]
}
