//! Numbers that a request brings for its own tokens, and a function that fills an input asks for.

use std::sync::Arc;

/// Numbers for the first tokens of a sequence, under a name: what only whoever asks knows of them,
/// such as where each lies in an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenValues {
    /// What functions that fill inputs ask for.
    pub name: Arc<str>,
    /// Numbers of each token, at least 1.
    pub width: usize,
    /// Those of the tokens from position 0 on, token by token.
    pub values: Vec<i32>,
    /// What the function makes those of all later tokens from.
    pub rest: i32,
}

/// [`TokenValues`] as far as they are of a step's tokens.
#[derive(Clone, Debug)]
pub struct ValuesInStep {
    pub(super) name: Arc<str>,
    pub(super) width: usize,
    /// Where they begin among the numbers of the step, and how many there are.
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) rest: i32,
}

impl ValuesInStep {
    /// Appends to `numbers` what `values` have for `tokens` tokens from position `start` on.
    pub fn take(values: &TokenValues, start: u64, tokens: u64, numbers: &mut Vec<i32>) -> Self {
        let TokenValues { name, width, values, rest } = values;
        let place = |position: u64| {
            let place = usize::try_from(position).unwrap_or(usize::MAX).saturating_mul(*width);
            place.min(values.len())
        };
        let taken = &values[place(start)..place(start.saturating_add(tokens))];
        let (first, count) = (numbers.len(), taken.len());
        numbers.extend_from_slice(taken);
        Self { name: Arc::clone(name), width: *width, first, count, rest: *rest }
    }
}

/// The [`TokenValues`] of a sequence's tokens of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValuesView<'a> {
    /// How many numbers each token has.
    pub width: usize,
    /// Those of its first tokens of the step, token by token; of fewer than it brings where it goes
    /// on after those that numbers were given for.
    pub values: &'a [i32],
    /// What those of the others are made from.
    pub rest: i32,
}
