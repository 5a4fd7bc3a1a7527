//! The check of a step's pages: that each sequence writes pages of its own, and reads as far as it
//! has come.

use super::compiled::CompiledModel;
use crate::words::{ModelError, PageFault, StepData, roles};
use piecewise_kernels::attention::PAGE_ROWS;
use std::collections::BTreeMap;

/// What a step's inputs say about pages.
#[derive(Clone, Copy, Debug)]
struct PagesOfStep<'a> {
    /// The position of each token.
    pub positions: &'a [i32],
    /// The row of the pool that each token writes; -1 writes nowhere.
    pub slots: &'a [i32],
    /// The first token of each sequence.
    pub starts: &'a [i32],
    /// The tokens of each sequence.
    pub queries: &'a [i32],
    /// The keys of each sequence, this step's among them.
    pub lengths: &'a [i32],
    /// The pages of each sequence, row after row.
    pub table: &'a [i32],
    /// How many pages a row of the table has.
    pub columns: usize,
}

impl PagesOfStep<'_> {
    /// Holds the inputs against each other.
    ///
    /// # Errors
    /// The first thing that does not fit.
    fn check(&self) -> Result<(), PageFault> {
        // Who has a page, and whether it was full before the step.
        let mut owners: BTreeMap<i32, (usize, bool)> = BTreeMap::new();
        let sequences = self.starts.iter().zip(self.queries).zip(self.lengths).enumerate();
        for (sequence, ((&start, &tokens), &length)) in sequences {
            let range = usize::try_from(start).ok().zip(usize::try_from(tokens).ok());
            let range = range.map(|(start, tokens)| start..start + tokens);
            let Some(range) = range.filter(|range| range.end <= self.positions.len()) else {
                return Err(PageFault::Tokens { sequence, start, tokens });
            };
            let pages = self.table.chunks(self.columns.max(1)).nth(sequence).unwrap_or(&[]);
            for token in range.clone() {
                let (position, slot) = (self.positions[token], self.slots[token]);
                let rows = PAGE_ROWS as i32;
                let page = usize::try_from(position / rows).ok().and_then(|i| pages.get(i));
                let page = page.copied().unwrap_or(-1);
                if slot >= 0 && (page < 0 || slot != page * rows + position % rows) {
                    return Err(PageFault::Slot { sequence, token, slot, page, position });
                }
            }
            let full = self.positions.get(range.start).map_or(0, |first| first / PAGE_ROWS as i32);
            let Some(position) = range.last().map(|last| self.positions[last]) else { continue };
            if length != position + 1 {
                return Err(PageFault::Length { sequence, length, position });
            }
            let used = (length as u64).div_ceil(PAGE_ROWS) as usize;
            for (i, &page) in pages.iter().take(used).enumerate() {
                let is_full = (i as i32) < full;
                if let Some((first, was_full)) = owners.insert(page, (sequence, is_full))
                    && !(was_full && is_full)
                {
                    return Err(PageFault::Shared { first, second: sequence, page });
                }
            }
        }
        Ok(())
    }
}

impl CompiledModel {
    /// Holds what a step says about pages against each other, where the graph has such inputs.
    ///
    /// # Errors
    /// What does not fit.
    pub(super) fn check_pages(&self, step: &StepData<'_>) -> Result<(), ModelError> {
        let graph = self.module.graph();
        let inputs = graph.inputs();
        let place = |role: &str| inputs.iter().position(|i| i.role.as_deref() == Some(role));
        let numbers = |role: &str| -> Option<Vec<i32>> {
            let bytes = step.inputs.get(place(role)?)?.chunks_exact(4);
            Some(bytes.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        let Some(table) = place(roles::KV_BLOCK_TABLE) else { return Ok(()) };
        let all = graph.ty(inputs[table].value).shape.last().and_then(|dim| dim.as_constant());
        let columns = step.columns(table).or(all).unwrap_or(0) as usize;
        let found = [
            roles::TOKEN_POSITIONS,
            roles::KV_SLOTS,
            roles::QUERY_STARTS,
            roles::QUERY_LENGTHS,
            roles::KV_LENGTHS,
            roles::KV_BLOCK_TABLE,
        ]
        .map(numbers);
        let [Some(positions), Some(slots), Some(starts), Some(queries), Some(lengths), Some(table)] =
            &found
        else {
            return Ok(());
        };
        PagesOfStep { positions, slots, starts, queries, lengths, table, columns }.check()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::PageFault;

    /// Two sequences: 18 tokens of a prompt on pages 3 and 5, and one at position 16 on 7 and 1.
    #[derive(Clone)]
    struct Step {
        positions: Vec<i32>,
        slots: Vec<i32>,
        lengths: Vec<i32>,
        table: Vec<i32>,
    }

    fn step() -> Step {
        let prompt = 0..18;
        let slot = |p: i32| if p < 16 { 3 * 16 + p } else { 5 * 16 + p - 16 };
        Step {
            positions: prompt.clone().chain([16]).collect(),
            slots: prompt.map(slot).chain([16]).collect(),
            lengths: vec![18, 17],
            table: vec![3, 5, -1, 7, 1, -1],
        }
    }

    fn check(step: &Step) -> Result<(), PageFault> {
        let Step { positions, slots, lengths, table } = step;
        let (starts, queries, columns) = (&[0, 18][..], &[18, 1][..], 3);
        PagesOfStep { positions, slots, starts, queries, lengths, table, columns }.check()
    }

    #[test]
    fn a_stale_block_table_is_found() {
        assert_eq!(check(&step()), Ok(()));
        let mut planted = step();
        planted.table[1] = 6;
        let found = check(&planted).unwrap_err();
        assert!(
            matches!(found, PageFault::Slot { sequence: 0, token: 16, page: 6, .. }),
            "{found}"
        );
        // Rows that write nowhere have no page.
        planted.slots.fill(-1);
        assert_eq!(check(&planted), Ok(()));
    }

    #[test]
    fn two_sequences_on_one_page_are_found() {
        let mut planted = step();
        planted.table[3] = 3;
        let found = check(&planted).unwrap_err();
        assert_eq!(found, PageFault::Shared { first: 0, second: 1, page: 3 });
    }

    #[test]
    fn a_page_that_was_full_before_the_step_may_be_shared() {
        let (slots, lengths, table) = (&[16, 96][..], &[17, 17][..], &[3, 1, 3, 6][..]);
        let (starts, queries, columns) = (&[0, 1][..], &[1, 1][..], 2);
        let check = |positions: &[i32], slots| {
            PagesOfStep { positions, slots, starts, queries, lengths, table, columns }.check()
        };
        assert_eq!(check(&[16, 16], slots), Ok(()));
        let lengths = &[17, 16][..];
        let step = PagesOfStep {
            positions: &[16, 15],
            slots: &[16, 63],
            starts,
            queries,
            lengths,
            table,
            columns,
        };
        assert_eq!(step.check(), Err(PageFault::Shared { first: 0, second: 1, page: 3 }));
    }

    #[test]
    fn stale_lengths_are_found() {
        for length in [16, 18] {
            let mut planted = step();
            planted.lengths[1] = length;
            let found = check(&planted).unwrap_err();
            assert_eq!(found, PageFault::Length { sequence: 1, length, position: 16 });
        }
    }
}
