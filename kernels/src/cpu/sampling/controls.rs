//! What rows ask for besides their parameters; see [`crate::sampling::ControlledSample`].

use super::row::{Scaled, order_key};
use crate::cpu::{CpuMathError, at_least};
use crate::inputs::{
    BIASED, CONTROL_WORDS, DETAIL_WORDS, GIVEN, LIKELIHOODS, MASKED, MAX_LOGIT_BIASES,
    MAX_TOP_LOGPROBS, OF_PROMPT, TALLIED, TIMES, WEIGHED, mask_words, token_words,
};

pub(super) const CALL: &str = "sample";

/// Operands of [`sample`](super::sample) for what rows ask besides.
#[derive(Debug)]
pub struct ControlArgs<'a> {
    /// `[R, 4]`: flags, row of `tokens`, row of `masks` or the id that is given, how many of the
    /// likeliest are wanted.
    pub controls: &'a [i32],
    /// `[R, 4]`: min_p, and the penalties for presence, frequency and repetition.
    pub penalties: &'a [f32],
    /// `[M, mask_words(vocabulary)]`.
    pub masks: &'a [i32],
    /// `[Q, token_words(vocabulary)]`; rows that sample together have rows of their own.
    pub tokens: &'a mut [i32],
    /// `[R, DETAIL_WORDS]`: written; what log-probabilities are made from.
    pub details: &'a mut [i32],
}

impl ControlArgs<'_> {
    /// Holds every slice against what the rows reach.
    pub(super) fn check(&self, rows: usize, vocabulary: usize) -> Result<(), CpuMathError> {
        let of_rows = rows.saturating_mul(CONTROL_WORDS);
        at_least(CALL, "controls", self.controls.len(), of_rows)?;
        at_least(CALL, "penalties", self.penalties.len(), of_rows)?;
        at_least(CALL, "details", self.details.len(), rows.saturating_mul(DETAIL_WORDS))?;
        let reach = |row: i32, words: u64| match usize::try_from(row) {
            Ok(row) => row.saturating_add(1).saturating_mul(words as usize),
            Err(_) => usize::MAX,
        };
        for words in self.controls[..of_rows].chunks_exact(CONTROL_WORDS) {
            if words[0] & MASKED != 0 {
                at_least(
                    CALL,
                    "masks",
                    self.masks.len(),
                    reach(words[2], mask_words(vocabulary as u64)),
                )?;
            }
            if words[0] & GIVEN != 0 {
                at_least(CALL, "logits", vocabulary, reach(words[2], 1))?;
            }
            if words[0] & (WEIGHED | TALLIED) != 0 {
                let need = reach(words[1], token_words(vocabulary as u64));
                at_least(CALL, "tokens", self.tokens.len(), need)?;
            }
        }
        Ok(())
    }

    fn words(&self, row: usize) -> [i32; CONTROL_WORDS] {
        std::array::from_fn(|i| self.controls[row * CONTROL_WORDS + i])
    }

    /// Where the tokens of an entry are.
    fn entry(entry: i32, vocabulary: usize) -> std::ops::Range<usize> {
        let words = token_words(vocabulary as u64) as usize;
        entry as usize * words..(entry as usize + 1) * words
    }

    /// Whether the row samples from other logits than it was given.
    pub(super) fn adjusts(&self, row: usize) -> bool {
        let flags = self.words(row)[0];
        flags & (MASKED | WEIGHED) != 0 && flags & GIVEN == 0
    }

    /// The id that the row gets whatever its finite logits say.
    pub(super) fn given(&self, row: usize) -> Option<i32> {
        let [flags, _, id, _] = self.words(row);
        (flags & GIVEN != 0).then_some(id)
    }

    /// `min_p` as a weight.
    pub(super) fn least_weight(&self, row: usize) -> u64 {
        let share = self.penalties[row * CONTROL_WORDS];
        if share > 0.0 { (f64::from(share.min(1.0)) * (1u64 << 40) as f64) as u64 } else { 0 }
    }

    /// The logits that the row samples from.
    pub(super) fn adjust(&self, row: usize, logits: &[f32], adjusted: &mut [f32]) {
        let [flags, entry, mask, _] = self.words(row);
        adjusted.copy_from_slice(logits);
        if flags & WEIGHED != 0 {
            let tokens = &self.tokens[Self::entry(entry, logits.len())];
            let (cells, listed) = tokens.split_at(logits.len().div_ceil(2));
            let (biased, biases) = listed.split_at(MAX_LOGIT_BIASES);
            let cells: &[u16] = bytemuck::cast_slice(cells);
            let penalties = &self.penalties[row * CONTROL_WORDS..][1..CONTROL_WORDS];
            let &[presence, frequency, repetition] = penalties else { return };
            for (id, (logit, &cell)) in adjusted.iter_mut().zip(cells).enumerate() {
                if cell == 0 {
                    continue;
                }
                if cell & BIASED != 0 {
                    let place = biased.partition_point(|&other| (other as usize) < id);
                    *logit += f32::from_bits(biases[place.min(MAX_LOGIT_BIASES - 1)] as u32);
                }
                if cell & (OF_PROMPT | TIMES) != 0 {
                    *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
                }
                let times = cell & TIMES;
                if times != 0 {
                    *logit -= frequency * f32::from(times);
                    *logit -= presence;
                }
            }
        }
        if flags & MASKED != 0 {
            let words = mask_words(logits.len() as u64) as usize;
            let mask = &self.masks[mask as usize * words..][..words];
            for (logits, word) in adjusted.chunks_mut(32).zip(mask) {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    // What is no number hides behind no mask.
                    if word >> bit & 1 == 0 && *logit < f32::INFINITY {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// Counts the token that was chosen, if one was.
    pub(super) fn count(&mut self, row: usize, vocabulary: usize, token: i32) {
        let [flags, entry, ..] = self.words(row);
        let (true, Ok(token)) = (flags & TALLIED != 0, usize::try_from(token)) else { return };
        let cells = &mut self.tokens[Self::entry(entry, vocabulary)];
        let cell = &mut bytemuck::cast_slice_mut::<i32, u16>(cells)[token];
        *cell += u16::from(*cell & TIMES < TIMES);
    }

    /// Tells what log-probabilities are made from: the largest logit, the sum of weights, the token's
    /// logit and place, how many of the likeliest follow, and these with their logits. Zeros where no token
    /// was chosen.
    pub(super) fn tell(&mut self, row: usize, logits: &[f32], token: i32) {
        let [flags, _, _, wanted] = self.words(row);
        let details = &mut self.details[row * DETAIL_WORDS..][..DETAIL_WORDS];
        details.fill(0);
        let (true, Ok(token)) = (flags & LIKELIHOODS != 0, usize::try_from(token)) else { return };
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scaled = Scaled { temperature: 1.0, top, least: 0 };
        let key = |id: usize| order_key(scaled.z(logits[id]), id);
        let own = key(token) >> 32;
        let (mut sum, mut larger) = (0u64, 0i32);
        let wanted = wanted.clamp(0, MAX_TOP_LOGPROBS as i32) as usize;
        // The keys of the likeliest so far, ascending: few, so that each is put in its place.
        let mut likeliest = [u64::MAX; MAX_TOP_LOGPROBS as usize];
        let likeliest = &mut likeliest[..wanted.min(logits.len())];
        for (id, &logit) in logits.iter().enumerate() {
            let key = key(id);
            larger += i32::from(key >> 32 < own);
            sum += scaled.weight(scaled.z(logit));
            if likeliest.last().is_some_and(|last| key < *last) {
                let place = likeliest.partition_point(|other| *other < key);
                likeliest[place..].rotate_right(1);
                likeliest[place] = key;
            }
        }
        details[0] = top.to_bits() as i32;
        details[1] = sum as u32 as i32;
        details[2] = (sum >> 32) as u32 as i32;
        details[3] = logits[token].to_bits() as i32;
        details[4] = larger + 1;
        details[5] = likeliest.len() as i32;
        for (key, told) in likeliest.iter().zip(details[6..].chunks_exact_mut(2)) {
            let id = *key as u32;
            (told[0], told[1]) = (id as i32, logits[id as usize].to_bits() as i32);
        }
    }
}
