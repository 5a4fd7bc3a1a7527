//! What a row may ask of sampling besides its parameters: the words and states by which
//! [`ControlledSample`](crate::sampling::ControlledSample) is told, and the words in which it answers.

/// The most ids that a request may give a bias.
pub const MAX_LOGIT_BIASES: usize = 1024;
/// The most ids that are told with their log-probabilities.
pub const MAX_TOP_LOGPROBS: u32 = 20;
/// Words that answer a row.
pub const DETAIL_WORDS: usize = 6 + 2 * MAX_TOP_LOGPROBS as usize;
/// What a row gets in the place of an id where its logits say nothing of what comes next: one is NaN
/// or +inf, or none is above -inf. It is below every id, and a gather clamps it.
pub const NO_ID: i32 = -1;
/// Words of a row of controls, and numbers of a row of penalties.
pub(crate) const CONTROL_WORDS: usize = 4;

/// Flags of the first word of controls; the next are the row of the state of tokens, the row of the
/// state of masks or the id that is given, and how many of the likeliest ids are wanted.
pub(crate) const MASKED: i32 = 1;
pub(crate) const WEIGHED: i32 = 2;
pub(crate) const TALLIED: i32 = 4;
pub(crate) const LIKELIHOODS: i32 = 8;
pub(crate) const GIVEN: i32 = 16;

/// The bits of a cell: how often its id was generated, whether it has a bias, and whether it is of
/// the prompt.
pub(crate) const TIMES: u16 = 0x3fff;
pub(crate) const BIASED: u16 = 0x4000;
pub(crate) const OF_PROMPT: u16 = 0x8000;

/// What a sequence's next token asks for besides its [`Sampling`](super::Sampling).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SampleControls {
    /// The row of the state of role `sample.masks` that says which ids may come.
    pub mask: Option<u32>,
    /// The row of the state of role `sample.tokens` with what its penalties and biases go by.
    pub tokens: Option<u32>,
    /// Whether the id that comes is counted in that row.
    pub counts: bool,
    /// Whether log-probabilities are told, and of how many of the likeliest ids.
    pub logprobs: Option<u32>,
    /// The id that comes, whatever the logits say, if they are finite: one of a prompt whose log-probabilities are asked
    /// for. It has no mask.
    pub given: Option<u32>,
}

impl SampleControls {
    /// The row of the input of role `sample.controls` that says so.
    pub fn words(self) -> [i32; CONTROL_WORDS] {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags = flag(self.mask.is_some() && self.given.is_none(), MASKED)
            | flag(self.tokens.is_some(), WEIGHED)
            | flag(self.tokens.is_some() && self.counts, TALLIED)
            | flag(self.logprobs.is_some(), LIKELIHOODS)
            | flag(self.given.is_some(), GIVEN);
        let word = |n: Option<u32>| n.unwrap_or(0) as i32;
        [
            flags,
            word(self.tokens),
            word(self.given.or(self.mask)),
            word(self.logprobs).min(MAX_TOP_LOGPROBS as i32),
        ]
    }
}

/// Words of a row of the state of role `sample.masks`: a bit for each id.
pub const fn mask_words(vocabulary: u64) -> u64 {
    vocabulary.div_ceil(32)
}

/// Words of a row of the state of role `sample.tokens`: two cells a word, a cell for each id, then
/// the ids that have a bias, ascending, and their biases.
pub const fn token_words(vocabulary: u64) -> u64 {
    vocabulary.div_ceil(2) + 2 * MAX_LOGIT_BIASES as u64
}

/// Fills a row of the state of role `sample.tokens`: ids of the prompt, ids generated after it, and
/// biases, each id once. Ids from the vocabulary on, and biases past the most that there may be, are
/// left out; an id counts up to 16,383 times.
pub fn fill_token_row(
    row: &mut [i32],
    vocabulary: u64,
    prompt: &[u32],
    generated: &[u32],
    biases: &[(u32, f32)],
) {
    row.fill(0);
    let words = vocabulary.div_ceil(2) as usize;
    let (cells, listed) = row.split_at_mut(words);
    let cells: &mut [u16] = &mut bytemuck::cast_slice_mut(cells)[..vocabulary as usize];
    let mut mark = |ids: &[u32], mark: fn(u16) -> u16| {
        for &id in ids {
            if let Some(cell) = cells.get_mut(id as usize) {
                *cell = mark(*cell);
            }
        }
    };
    mark(prompt, |cell| cell | OF_PROMPT);
    mark(generated, |cell| cell + u16::from(cell & TIMES < TIMES));
    let mut biases = Vec::from_iter(biases.iter().take(MAX_LOGIT_BIASES));
    biases.sort_by_key(|(id, _)| *id);
    mark(&Vec::from_iter(biases.iter().map(|(id, _)| *id)), |cell| cell | BIASED);
    let (ids, values) = listed.split_at_mut(MAX_LOGIT_BIASES);
    ids.fill(i32::MAX);
    for ((id, value), (biased, bias)) in ids.iter_mut().zip(values).zip(biases) {
        (*id, *value) = (*biased as i32, bias.to_bits() as i32);
    }
}

/// What is told of a row: made into log-probabilities on the host, in f64.
#[derive(Clone, Copy, Debug)]
pub struct Details<'a> {
    words: &'a [u8],
}

/// The least log-probability that is told, of ids whose logit is -inf.
const LEAST_LOGPROB: f32 = -9999.0;

impl<'a> Details<'a> {
    /// Those of a row in the bytes of the op's second result.
    pub fn of_row(result: &'a [u8], row: usize) -> Option<Self> {
        let words = result.get(4 * DETAIL_WORDS * row..)?.get(..4 * DETAIL_WORDS)?;
        Some(Self { words })
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = &self.words[4 * at..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// `logit - ln(sum of e^logit)`, where the sum is in 40 binary places of `e^largest`.
    fn logprob_of(&self, logit: u32) -> f32 {
        let (largest, logit) = (f32::from_bits(self.word(0)), f32::from_bits(logit));
        let sum = (u64::from(self.word(2)) << 32 | u64::from(self.word(1))) as f64;
        let logprob = f64::from(logit) - f64::from(largest) - (sum / (1u64 << 40) as f64).ln();
        match (logprob as f32).is_finite() {
            true => (logprob as f32).clamp(LEAST_LOGPROB, 0.0),
            false => LEAST_LOGPROB,
        }
    }

    /// Of the chosen token, by the logits before any control.
    pub fn logprob(&self) -> f32 {
        self.logprob_of(self.word(3))
    }

    /// The token's place by its logit, 1 for the largest.
    pub fn rank(&self) -> u32 {
        self.word(4)
    }

    /// The likeliest ids with their log-probabilities, the likeliest first.
    pub fn top(&self) -> impl Iterator<Item = (u32, f32)> {
        let count = self.word(5).min(MAX_TOP_LOGPROBS) as usize;
        (0..count).map(|i| (self.word(6 + 2 * i), self.logprob_of(self.word(7 + 2 * i))))
    }
}
