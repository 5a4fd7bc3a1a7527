//! What a log says about sizes: how many steps of each count there were.

use std::collections::BTreeMap;

use crate::capture_sizes::ListKind;
use crate::mode::GraphMode;

/// The most tokens that a step may have: larger values are taken for errors of unit.
pub const MAX_STEP_TOKENS: u32 = 1 << 24;

/// The most steps that a log may have, so that no sum of costs overflows.
pub const MAX_STEPS: u64 = 1 << 32;

/// A kind of step, for dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// Any step that is no uniform decode; dispatched by its tokens.
    Mixed,
    /// Every sequence has the same number of tokens; dispatched by its sequences.
    Decode {
        /// What each sequence brings: 1, or more where drafts are verified.
        query_length: u32,
    },
}

/// Steps that a log says were replayed or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ObservedModes {
    /// Steps whose mode is in the log.
    pub known_steps: u64,
    /// Of these, the ones that replayed captured graphs.
    pub replayed_steps: u64,
}

/// Steps by count, for each query length.
pub type Steps = BTreeMap<u32, BTreeMap<u32, u64>>;

/// How many steps a log has of each count: all that planning needs of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    mixed: BTreeMap<u32, u64>,
    decode: Steps,
    steps: u64,
    /// Modes, as far as the log names them.
    pub observed: ObservedModes,
    /// The most sequences in one step, where the log names them.
    pub most_sequences: u32,
}

impl Traffic {
    /// Adds `steps` steps of `count` tokens (mixed) or sequences (decode).
    ///
    /// Counts and totals beyond [`MAX_STEP_TOKENS`] and [`MAX_STEPS`] are refused with the reason.
    pub fn add(&mut self, kind: StepKind, count: u32, steps: u64) -> Result<(), &'static str> {
        let query = match kind {
            StepKind::Mixed => 1,
            StepKind::Decode { query_length } => query_length,
        };
        if count == 0 || query == 0 {
            return Err("a step without tokens");
        }
        if count.checked_mul(query).is_none_or(|tokens| tokens > MAX_STEP_TOKENS) {
            return Err("absurd: more than 16777216 tokens in a step");
        }
        if steps == 0 {
            return Ok(());
        }
        let total = self.steps.checked_add(steps).filter(|total| *total <= MAX_STEPS);
        self.steps = total.ok_or("absurd: more than 4294967296 steps in the log")?;
        let histogram = match kind {
            StepKind::Mixed => &mut self.mixed,
            StepKind::Decode { query_length } => self.decode.entry(query_length).or_default(),
        };
        *histogram.entry(count).or_default() += steps;
        Ok(())
    }

    /// How many steps there are, mixed ones and decodes together.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps by tokens, of the mixed steps.
    pub fn mixed(&self) -> &BTreeMap<u32, u64> {
        &self.mixed
    }

    /// Steps by sequences, of the uniform decodes, for each query length.
    pub fn decode(&self) -> &Steps {
        &self.decode
    }

    /// The steps that dispatch looks up in a list first: tokens of every step that has no decode
    /// graphs of its own (as of query length 1), or sequences of the decodes that have.
    pub(crate) fn of_list(&self, list: ListKind, mode: GraphMode) -> Steps {
        match list {
            ListKind::Decode if mode.has_decode_graphs() => self.decode.clone(),
            ListKind::Decode => Steps::new(),
            ListKind::Tokens => {
                let mut tokens = self.mixed.clone();
                for (kind, count, steps) in self.iter() {
                    if kind != StepKind::Mixed && !mode.has_decode_graphs() {
                        *tokens.entry(kind.tokens(count)).or_default() += steps;
                    }
                }
                BTreeMap::from([(1, tokens)])
            }
        }
    }

    /// The largest number of tokens of a mixed step, 0 without any.
    pub fn largest_mixed(&self) -> u32 {
        self.mixed.last_key_value().map_or(0, |(tokens, _)| *tokens)
    }

    /// The largest number of sequences of a uniform decode, 0 without any.
    pub fn largest_decode(&self) -> u32 {
        let largest = |h: &BTreeMap<u32, u64>| h.last_key_value().map_or(0, |(batch, _)| *batch);
        self.decode.values().map(largest).max().unwrap_or(0)
    }

    /// The largest number of tokens of any step.
    pub fn largest_tokens(&self) -> u32 {
        let of_decode = self.decode.iter().map(|(query, batches)| {
            batches.last_key_value().map_or(0, |(batch, _)| batch.saturating_mul(*query))
        });
        of_decode.max().unwrap_or(0).max(self.largest_mixed())
    }

    /// Every step as (kind, count, steps), in order of kind and count.
    pub fn iter(&self) -> impl Iterator<Item = (StepKind, u32, u64)> + '_ {
        let mixed = self.mixed.iter().map(|(count, steps)| (StepKind::Mixed, *count, *steps));
        let decode = self.decode.iter().flat_map(|(query_length, batches)| {
            let kind = StepKind::Decode { query_length: *query_length };
            batches.iter().map(move |(count, steps)| (kind, *count, *steps))
        });
        mixed.chain(decode)
    }
}

impl StepKind {
    /// Tokens of a step of this kind and count.
    pub fn tokens(self, count: u32) -> u32 {
        match self {
            StepKind::Mixed => count,
            StepKind::Decode { query_length } => count.saturating_mul(query_length),
        }
    }
}
