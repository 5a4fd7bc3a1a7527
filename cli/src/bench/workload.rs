//! What is measured: the steps of each row, written down before anything runs.

use anyhow::{bail, ensure};
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::measure::{PlannedChunk, PlannedStep, StepTokens};
use piecewise_runtime::words::{GraphMode, StepMode};
use std::ops::Range;
use std::str::FromStr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// Sequences that go on, whose contexts have this mean.
    Decode { batch: DecodeBatch, context: u64 },
    /// Decodes and two chunks of prompts, so many tokens together.
    Mixed { tokens: u64, context: u64 },
    /// Prompts from their start, and decodes beside them whose contexts have this mean.
    Prefill { prompts: Prompts, context: u64 },
}

/// So many sequences of so many tokens each: `8` brings one of each, `8x4` four, each of which is
/// sampled from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DecodeBatch {
    pub(super) sequences: u64,
    pub(super) query_length: u64,
}

impl FromStr for DecodeBatch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("`{text}` is neither N nor NxM: 8, or 8x4 for four tokens of each");
        let (sequences, tokens) = text.split_once('x').unwrap_or((text, "1"));
        let number = |text: &str| text.parse().map_err(wrong);
        Ok(Self { sequences: number(sequences)?, query_length: number(tokens)? })
    }
}

impl DecodeBatch {
    /// How many its step computes.
    pub(super) fn tokens(self) -> u64 {
        self.sequences.saturating_mul(self.query_length)
    }
}

/// So many prompts of so many tokens each: `2048` is one, `4x512` are four of 512, and `4x512+12` has
/// twelve decodes beside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prompts {
    pub(super) count: u64,
    pub(super) tokens: u64,
    pub(super) decodes: u64,
}

impl FromStr for Prompts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| {
            format!(
                "`{text}` is none of N, NxM and NxM+D: 2048, or 4x512+12 for four of 512 beside twelve decodes"
            )
        };
        let (prompts, decodes) = text.split_once('+').unwrap_or((text, "0"));
        let (count, tokens) = prompts.split_once('x').unwrap_or(("1", prompts));
        let number = |text: &str| text.parse().map_err(wrong);
        Ok(Self { count: number(count)?, tokens: number(tokens)?, decodes: number(decodes)? })
    }
}

impl Prompts {
    /// Tokens of all of them, and of the decodes.
    pub(super) fn total(self) -> u64 {
        self.count.saturating_mul(self.tokens).saturating_add(self.decodes)
    }

    fn sequences(self) -> u64 {
        self.count.saturating_add(self.decodes)
    }
}

/// The steps of a row: first those that warm up, then those that are timed, and one more, so that
/// every timed step has the next one submitted behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Workload {
    pub(super) shape: Shape,
    pub(super) steps: Vec<PlannedStep>,
    pub(super) warmup: usize,
}

/// How many steps a row has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lengths {
    pub(super) warmup: u64,
    pub(super) timed: u64,
}

impl Lengths {
    fn all(self) -> u64 {
        self.warmup + self.timed + 1
    }
}

/// Prompts of a mixed step.
const PROMPTS: u64 = 2;

/// The sequences that rows of these batches take: mixed ones need two prompts.
pub(super) fn sequences(batches: &[DecodeBatch], has_mixed: bool, prefill: &[Prompts]) -> u64 {
    let batches = batches.iter().map(|batch| batch.sequences);
    let counts = batches.chain(prefill.iter().map(|prompts| prompts.sequences()));
    let batch = counts.max().unwrap_or(1);
    if has_mixed { batch.max(PROMPTS) } else { batch }
}

/// An id for a position of a sequence.
fn id(sequence: u64, position: u64, vocab: u64) -> u32 {
    let mixed = (sequence << 32 | position).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 33) % vocab.max(1)) as u32
}

fn ids(sequence: u64, start: u64, count: u64, vocab: u64) -> StepTokens {
    StepTokens::Ids((start..start + count).map(|at| id(sequence, at, vocab)).collect())
}

/// The context of a sequence of a batch: evenly spread over a quarter of the mean, around it.
fn context_of(sequence: u64, batch: u64, mean: u64) -> u64 {
    if batch < 2 {
        return mean;
    }
    let half = mean / 8;
    (mean - half) + 2 * half * sequence / (batch - 1)
}

/// The first position that a decode of `context` writes: half of the timed steps come before the
/// context is reached, and half after it.
fn first_position(context: u64, lengths: Lengths, query_length: u64) -> u64 {
    let steps = 1 + lengths.warmup + lengths.timed / 2;
    context.saturating_sub(steps.saturating_mul(query_length))
}

/// The decodes of a step of a row, each at a length of its own around `context`: the first step brings
/// an id, the others feed back. One of several tokens brings ids in every step, as where another model
/// has drafted them.
fn decodes(
    step: u64,
    batch: DecodeBatch,
    context: u64,
    lengths: Lengths,
    vocab: u64,
) -> impl Iterator<Item = PlannedChunk> {
    let DecodeBatch { sequences, query_length } = batch;
    (0..sequences).map(move |sequence| {
        let own = context_of(sequence, sequences, context);
        let start = first_position(own, lengths, query_length) + step * query_length;
        let (tokens, rows) = match (step, query_length) {
            (1.., 1) => (StepTokens::Feedback, ChunkRows::Last),
            _ => (ids(sequence, start, query_length, vocab), ChunkRows::All),
        };
        PlannedChunk { sequence: sequence as usize, start, tokens, rows }
    })
}

fn prompt(sequence: u64, start: u64, count: u64, vocab: u64) -> PlannedChunk {
    let (tokens, sequence) = (ids(sequence, start, count, vocab), sequence as usize);
    PlannedChunk { sequence, start, tokens, rows: ChunkRows::Last }
}

impl Workload {
    fn new(shape: Shape, lengths: Lengths, chunks: impl Fn(u64) -> Vec<PlannedChunk>) -> Self {
        let steps = (0..lengths.all()).map(|step| PlannedStep { chunks: chunks(step) });
        Self { shape, steps: steps.collect(), warmup: lengths.warmup as usize }
    }

    /// Steps of sequences that all decode, each at a length of its own around `context`.
    pub(super) fn decode(batch: DecodeBatch, context: u64, lengths: Lengths, vocab: u64) -> Self {
        let chunks = |step| decodes(step, batch, context, lengths, vocab).collect();
        Self::new(Shape::Decode { batch, context }, lengths, chunks)
    }

    /// A quarter of the tokens are decodes, as far as `sequences` go, and the rest is two chunks:
    /// the start of a prompt, and the middle of one. Where they are cut changes from step to step.
    pub(super) fn mixed(
        tokens: u64,
        context: u64,
        sequences: u64,
        lengths: Lengths,
        vocab: u64,
    ) -> Self {
        let decoding = (tokens / 4).min(sequences.saturating_sub(PROMPTS));
        let batch = DecodeBatch { sequences: decoding, query_length: 1 };
        let rest = tokens - decoding;
        Self::new(Shape::Mixed { tokens, context }, lengths, |step| {
            let first = if rest < 16 { rest } else { rest * (5 + step % 5) / 12 };
            let starts =
                [(sequences - 1, 0, first), (sequences.max(2) - 2, context / 2, rest - first)];
            let prompts = starts.into_iter().filter(|(_, _, count)| *count > 0);
            let prompts = prompts.map(|(sequence, at, count)| prompt(sequence, at, count, vocab));
            decodes(step, batch, context, lengths, vocab).chain(prompts).collect()
        })
    }

    /// Prompts from their start, the same in every step, after decodes that go on.
    pub(super) fn prefill(prompts: Prompts, context: u64, lengths: Lengths, vocab: u64) -> Self {
        let Prompts { count, tokens, decodes: decoding } = prompts;
        let batch = DecodeBatch { sequences: decoding, query_length: 1 };
        Self::new(Shape::Prefill { prompts, context }, lengths, |step| {
            let prompts = (decoding..decoding + count).map(|at| prompt(at, 0, tokens, vocab));
            decodes(step, batch, context, lengths, vocab).chain(prompts).collect()
        })
    }

    pub(super) fn sequences(&self) -> usize {
        self.steps.first().map_or(0, |step| step.chunks.len())
    }

    /// How its steps run in a graph mode.
    pub(super) fn step_mode(&self, mode: GraphMode) -> StepMode {
        match self.shape {
            Shape::Decode { .. } => mode.decode(),
            Shape::Mixed { .. } | Shape::Prefill { .. } => mode.mixed(),
        }
    }

    /// Of one step: those of a row are alike.
    pub(super) fn tokens(&self) -> u64 {
        self.steps.first().map_or(0, PlannedStep::tokens)
    }

    /// The steps that are timed.
    pub(super) fn timed(&self) -> &[PlannedStep] {
        &self.steps[self.timed_range()]
    }

    /// Without those that warm up, and without the last, which nothing follows.
    pub(super) fn timed_range(&self) -> Range<usize> {
        self.warmup..self.steps.len().saturating_sub(1).max(self.warmup)
    }
}

/// What the sequences must hold before the rows run, and room for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sequences {
    /// Positions that each needs, whole pages.
    pub(super) room: Vec<u64>,
    /// Positions of each that some row attends to and none writes.
    pub(super) prefix: Vec<u64>,
}

impl Sequences {
    /// What `rows` need of `count` sequences together.
    pub(super) fn of(rows: &[Workload], count: u64) -> Self {
        let mut found = Self { room: vec![0; count as usize], prefix: vec![0; count as usize] };
        for chunk in rows.iter().flat_map(|row| &row.steps).flat_map(|step| &step.chunks) {
            let end = (chunk.start + chunk.count()).next_multiple_of(PAGE_ROWS);
            let room = &mut found.room[chunk.sequence];
            *room = end.max(*room);
        }
        for chunk in rows.iter().filter_map(|row| row.steps.first()).flat_map(|s| &s.chunks) {
            let prefix = &mut found.prefix[chunk.sequence];
            *prefix = chunk.start.max(*prefix);
        }
        found
    }

    /// Steps of at most `most` tokens that compute the prefixes.
    pub(super) fn prompts(&self, most: u64, vocab: u64) -> Vec<PlannedStep> {
        let mut steps = Vec::new();
        for (sequence, &prefix) in self.prefix.iter().enumerate() {
            for start in (0..prefix).step_by(most.max(1) as usize) {
                let count = most.min(prefix - start);
                let tokens = ids(sequence as u64, start, count, vocab);
                let chunk = PlannedChunk { sequence, start, tokens, rows: ChunkRows::Last };
                steps.push(PlannedStep { chunks: vec![chunk] });
            }
        }
        steps
    }
}

/// Checks counts that a user gave.
///
/// # Errors
/// When one is 0 or too large, or there are none.
pub(super) fn check_counts(flag: &str, counts: &[u64], may_be_empty: bool) -> anyhow::Result<()> {
    const MOST: u64 = 1 << 20;
    if let Some(wrong) = counts.iter().find(|count| !(1..=MOST).contains(*count)) {
        bail!("{flag} has {wrong}; counts are from 1 to {MOST}");
    }
    ensure!(may_be_empty || !counts.is_empty(), "{flag} is empty");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: Lengths = Lengths { warmup: 4, timed: 10 };

    fn of(sequences: u64) -> DecodeBatch {
        DecodeBatch { sequences, query_length: 1 }
    }

    #[test]
    fn contexts_differ_and_have_the_mean_that_was_asked_for() {
        for batch in [1, 2, 3, 8] {
            let row = Workload::decode(of(batch), 512, LENGTHS, 1000);
            let of = |step: &PlannedStep| step.positions() as f64 / batch as f64;
            let mean = row.timed().iter().map(of).sum::<f64>() / 10.0;
            assert!((mean - 512.0).abs() <= 1.0, "batch {batch}: {mean}");
            let starts: std::collections::BTreeSet<u64> =
                row.steps[0].chunks.iter().map(|chunk| chunk.start).collect();
            assert_eq!(starts.len() as u64, batch);
        }
    }

    #[test]
    fn decodes_feed_back_after_their_first_step_and_advance() {
        let row = Workload::decode(of(2), 64, LENGTHS, 1000);
        assert_eq!((row.steps.len(), row.timed().len(), row.sequences()), (15, 10, 2));
        for (number, pair) in row.steps.windows(2).enumerate() {
            for (a, b) in pair[0].chunks.iter().zip(&pair[1].chunks) {
                assert_eq!(b.start, a.start + 1);
                assert_eq!(b.tokens, StepTokens::Feedback);
                assert_eq!(a.tokens == StepTokens::Feedback, number > 0);
            }
        }
        // More steps than the context has positions begin at its start.
        let short = Workload::decode(of(1), 4, LENGTHS, 1000);
        assert_eq!(short.steps[0].chunks[0].start, 0);
    }

    #[test]
    fn sequences_of_several_tokens_bring_ids_and_want_every_row() {
        let batch: DecodeBatch = "3x4".parse().unwrap();
        assert_eq!((batch.sequences, batch.query_length, batch.tokens()), (3, 4, 12));
        assert_eq!("8".parse(), Ok(of(8)));
        for text in ["", "x", "8x", "x4", "8x4x2", "-1"] {
            assert!(text.parse::<DecodeBatch>().is_err(), "{text}");
        }
        let row = Workload::decode(batch, 512, LENGTHS, 1000);
        assert_eq!((row.sequences(), row.tokens()), (3, 12));
        for pair in row.steps.windows(2) {
            for (a, b) in pair[0].chunks.iter().zip(&pair[1].chunks) {
                assert_eq!((b.start, b.count(), b.rows), (a.start + 4, 4, ChunkRows::All));
            }
        }
    }

    #[test]
    fn mixed_steps_have_the_tokens_that_were_asked_for_and_change() {
        for tokens in [1, 2, 3, 15, 16, 64, 300, 512, 2048] {
            for sequences in [2, 3, 8] {
                let row = Workload::mixed(tokens, 128, sequences, LENGTHS, 1000);
                for step in &row.steps {
                    assert_eq!(step.tokens(), tokens, "{tokens} {sequences}");
                    assert!(step.chunks.len() as u64 <= sequences.max(2));
                    let mut own: Vec<_> = step.chunks.iter().map(|c| c.sequence).collect();
                    own.dedup();
                    assert_eq!(own.len(), step.chunks.len(), "a sequence comes once");
                }
                if tokens >= 64 {
                    assert_ne!(row.steps[2], row.steps[3]);
                }
            }
        }
    }

    #[test]
    fn sequences_have_room_for_every_row_and_their_prefixes_are_computed() {
        let rows = [
            Workload::decode(of(2), 64, LENGTHS, 1000),
            Workload::mixed(100, 64, 4, LENGTHS, 1000),
        ];
        let sequences = Sequences::of(&rows, 4);
        assert!(sequences.room.iter().all(|rows| rows.is_multiple_of(PAGE_ROWS)));
        for chunk in rows.iter().flat_map(|row| &row.steps).flat_map(|step| &step.chunks) {
            assert!(chunk.start + chunk.count() <= sequences.room[chunk.sequence]);
        }
        let first = |row: &Workload, i: usize| row.steps[0].chunks[i].start;
        assert_eq!(sequences.prefix[0], first(&rows[0], 0).max(first(&rows[1], 0)));
        assert_eq!(sequences.prefix[2..], [32, 0]);
        let prompts = sequences.prompts(24, 1000);
        assert!(prompts.iter().all(|step| step.tokens() <= 24));
        let computed: u64 = prompts.iter().map(PlannedStep::tokens).sum();
        assert_eq!(computed, sequences.prefix.iter().sum::<u64>());
    }

    #[test]
    fn prompts_are_whole_and_alone() {
        let prompts: Prompts = "3x20".parse().unwrap();
        assert_eq!((prompts.count, prompts.tokens, prompts.total()), (3, 20, 60));
        assert_eq!("64".parse(), Ok(Prompts { count: 1, tokens: 64, decodes: 0 }));
        for text in ["", "x", "3x", "x3", "3x4x5", "-1", "64+", "+3", "64+3+1"] {
            assert!(text.parse::<Prompts>().is_err(), "{text}");
        }
        let row = Workload::prefill(prompts, 64, LENGTHS, 1000);
        assert_eq!((row.sequences(), row.tokens(), row.timed().len()), (3, 60, 10));
        assert!(row.steps.iter().flat_map(|s| &s.chunks).all(|c| c.start == 0 && c.count() == 20));
        assert_eq!(sequences(&[], false, &[prompts]), 3);
        let needs = Sequences::of(&[row], 3);
        assert_eq!((needs.room, needs.prefix), (vec![32; 3], vec![0; 3]));
    }

    #[test]
    fn decodes_go_on_beside_prompts() {
        let prompts: Prompts = "2x20+3".parse().unwrap();
        let row = Workload::prefill(prompts, 64, LENGTHS, 1000);
        assert_eq!((row.sequences(), row.tokens(), prompts.total()), (5, 43, 43));
        let decodes = Workload::decode(of(3), 64, LENGTHS, 1000);
        for (mixed, decodes) in row.steps.iter().zip(&decodes.steps) {
            let (beside, prompts) = mixed.chunks.split_at(3);
            let places = |chunks: &[PlannedChunk]| {
                chunks.iter().map(|c| (c.sequence, c.start, c.count())).collect::<Vec<_>>()
            };
            assert_eq!(places(beside), places(&decodes.chunks));
            assert_eq!(places(prompts), [(3, 0, 20), (4, 0, 20)]);
        }
        assert_eq!(sequences(&[], false, &[prompts]), 5);
    }

    #[test]
    fn counts_are_checked() {
        assert!(check_counts("--batch", &[1, 8], false).is_ok());
        assert!(check_counts("--mixed", &[], true).is_ok());
        for (counts, what) in [(&[][..], "empty"), (&[0], "has 0"), (&[1 << 40], "from 1 to")] {
            let error = check_counts("--batch", counts, false).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
