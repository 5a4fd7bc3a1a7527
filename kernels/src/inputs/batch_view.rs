//! The batch of a step, as functions that fill inputs see it.

use super::carried::{ValuesInStep, ValuesView};
use super::controls::SampleControls;
use super::pages::PAGE_ROWS;
use super::sampling::Sampling;
use std::ops::Range;

/// What one sequence brings to a step, by positions in the arrays of a [`BatchView`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SequenceInStep {
    /// The position in the sequence of its first token of this step.
    pub start: u64,
    /// Its first row among the tokens of the step.
    pub first_token: u64,
    /// Rows of the step that are its own, from `first_token` on.
    pub tokens: u64,
    /// Its first row among those that want logits.
    pub first_row: u64,
    /// How many of its last tokens want logits.
    pub rows: u64,
    /// Its first page among those of the step.
    pub first_page: usize,
    /// How many it has, from `first_page` on.
    pub pages: usize,
    /// The entry of the state of sampled ids that holds its token, where the host does not know
    /// it yet.
    pub feedback: Option<u32>,
    /// The entry of the state of sampled ids that its last row writes.
    pub entry: Option<u32>,
    /// The row of the states of role `sequence.state` that is its own.
    pub slot: Option<u32>,
    /// The first of the numbers that its request brings among those of the step.
    pub first_values: usize,
    /// Under how many names it brings some.
    pub values: usize,
    /// How its next token is chosen.
    pub sampling: Sampling,
    /// What its next token asks for besides.
    pub controls: SampleControls,
    /// What is told of the ids of its prompt that follow its rows.
    pub follows: Option<FollowingIds>,
}

/// Log-probabilities of the ids that follow rows of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FollowingIds {
    /// Of how many of the likeliest ids besides.
    pub likeliest: u32,
    /// The id that follows the last row; `None` where that row samples.
    pub next: Option<u32>,
}

/// The batch of a step: its sequences in the order of their rows.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    sequences: &'a [SequenceInStep],
    ids: &'a [i32],
    pages: &'a [u32],
    values: &'a [ValuesInStep],
    numbers: &'a [i32],
}

impl<'a> BatchView<'a> {
    /// The batch of these sequences, whose tokens are `ids` one after the other (0 where an id is
    /// fed back) and whose pages are `pages`.
    pub fn new(sequences: &'a [SequenceInStep], ids: &'a [i32], pages: &'a [u32]) -> Self {
        Self { sequences, ids, pages, values: &[], numbers: &[] }
    }

    /// The same batch with what its requests bring: `numbers`, and of each name which they are.
    #[must_use]
    pub fn with_values(self, values: &'a [ValuesInStep], numbers: &'a [i32]) -> Self {
        Self { values, numbers, ..self }
    }

    /// In the order of their rows.
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = SequenceView<'a>> + use<'a> {
        let batch = *self;
        self.sequences.iter().map(move |part| SequenceView { part, batch })
    }

    /// The ids of all tokens; 0 where an id is fed back.
    pub fn ids(&self) -> &'a [i32] {
        self.ids
    }
}

/// A sequence's part in a step.
#[derive(Clone, Copy, Debug)]
pub struct SequenceView<'a> {
    part: &'a SequenceInStep,
    batch: BatchView<'a>,
}

impl<'a> SequenceView<'a> {
    /// The tokens that it brings.
    pub fn tokens(&self) -> u64 {
        self.part.tokens
    }

    /// The position of the first of them in the sequence: what earlier steps have computed.
    pub fn start(&self) -> u64 {
        self.part.start
    }

    /// Its length with the tokens of this step.
    pub fn length(&self) -> u64 {
        self.part.start + self.part.tokens
    }

    /// The positions of its tokens.
    pub fn positions(&self) -> Range<u64> {
        self.start()..self.length()
    }

    /// Its rows among the tokens of the step.
    pub fn token_rows(&self) -> Range<u64> {
        self.part.first_token..self.part.first_token + self.part.tokens
    }

    /// The rows of [`Self::token_rows`] that want logits: its last ones.
    pub fn wanted_rows(&self) -> Range<u64> {
        let end = self.part.first_token + self.part.tokens;
        end - self.part.rows..end
    }

    /// Its rows among those of the step that want logits.
    pub fn logit_rows(&self) -> Range<u64> {
        self.part.first_row..self.part.first_row + self.part.rows
    }

    /// The ids of its tokens; 0 where the id is fed back.
    pub fn ids(&self) -> &'a [i32] {
        &self.batch.ids[self.part.first_token as usize..][..self.part.tokens as usize]
    }

    /// The entry of the state of sampled ids that holds its only token, where the host does not
    /// know it yet.
    pub fn feedback(&self) -> Option<u32> {
        self.part.feedback
    }

    /// The entry of the state of sampled ids that its last row writes.
    pub fn entry(&self) -> Option<u32> {
        self.part.entry
    }

    /// The row of the states of role `sequence.state` that is its own, if it has one.
    pub fn slot(&self) -> Option<u32> {
        self.part.slot
    }

    /// The numbers of its pages in order.
    pub fn pages(&self) -> &'a [u32] {
        &self.batch.pages[self.part.first_page..][..self.part.pages]
    }

    /// The row of the paged states that holds a position, if a page holds it.
    pub fn page_row(&self, position: u64) -> Option<u64> {
        let page = self.pages().get((position / PAGE_ROWS) as usize)?;
        Some(u64::from(*page) * PAGE_ROWS + position % PAGE_ROWS)
    }

    /// The numbers that its request brings under a name, if it does.
    pub fn values(&self, name: &str) -> Option<ValuesView<'a>> {
        let own = &self.batch.values[self.part.first_values..][..self.part.values];
        let ValuesInStep { width, first, count, rest, .. } =
            *own.iter().find(|values| *values.name == *name)?;
        Some(ValuesView { width, values: &self.batch.numbers[first..first + count], rest })
    }

    /// How its next token is chosen.
    pub fn sampling(&self) -> Sampling {
        self.part.sampling
    }

    /// What each of its rows asks for besides: the last what its next token does, those before it
    /// nothing, or to be told of the id that follows in the prompt.
    pub fn row_controls(&self) -> impl Iterator<Item = SampleControls> + use<'a> {
        let SequenceInStep { rows, tokens, controls, follows, .. } = *self.part;
        let ids = self.ids();
        (tokens - rows + 1..=tokens).map(move |next| {
            let known = ids.get(next as usize).map(|&id| id as u32);
            match follows {
                Some(FollowingIds { likeliest, next }) => match known.or(next) {
                    Some(id) => SampleControls {
                        given: Some(id),
                        logprobs: Some(likeliest),
                        ..SampleControls::default()
                    },
                    None => controls,
                },
                None if known.is_none() => controls,
                None => SampleControls::default(),
            }
        })
    }
}
