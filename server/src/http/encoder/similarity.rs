//! How alike two texts are: by a cross-encoder, which reads both, or by their embeddings.

use super::super::body::Held;
use super::super::error::ApiError;
use super::super::fields::{Field, field, schema};
use super::super::state::{State, longest, needed};
use super::items::{check_texts, encode, place, usage};
use super::served::{EncoderKind, EncoderState};
use crate::structured::Wanted;
use piecewise::encoding::{ItemError, TextItem};
use piecewise::models::encoder::ScoreActivation;
use serde_json::Value;
use std::sync::Arc;

/// A field of every endpoint that scores.
pub(super) const USE_ACTIVATION: Field = field(
    "use_activation",
    schema::FLAG_THAT_IS_SET,
    "Whether a cross-encoder's logits become scores as its folder says.",
);

/// Texts on both sides, by the names of their fields, and which of them are compared.
pub(super) struct Pairs {
    pub(super) fields: [&'static str; 2],
    pub(super) texts: [Vec<String>; 2],
}

impl Pairs {
    /// The places of each pair; a single first text goes with every second one.
    fn places(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let is_one = self.texts[0].len() == 1;
        (0..self.texts[1].len()).map(move |i| [if is_one { 0 } else { i }, i])
    }

    /// Bytes of the longest text.
    fn longest(&self) -> usize {
        longest(self.texts.iter().flatten())
    }

    /// No more than so many tokens are read: of a cross-encoder both texts of each pair are.
    fn most_tokens(&self, encoder: &EncoderState) -> usize {
        let most = |text: &String| text.len().min(encoder.longest);
        match encoder.kind {
            EncoderKind::Embeddings { .. } => self.texts.iter().flatten().map(most).sum(),
            EncoderKind::Scores(_) => {
                let both = |[a, b]: [usize; 2]| most(&self.texts[0][a]) + most(&self.texts[1][b]);
                self.places().map(both).sum()
            }
        }
    }
}

/// The score of each pair, and the tokens that were read.
pub(super) async fn scores(
    state: &State,
    encoder: &EncoderState,
    mut held: Held,
    pairs: Pairs,
    raw: bool,
) -> Result<(Vec<f32>, Value), ApiError> {
    for (field, texts) in pairs.fields.iter().zip(&pairs.texts) {
        check_texts(encoder.room, texts, &place(field, texts.len()))?;
    }
    let held = &mut held;
    held.take_tokens(pairs.most_tokens(encoder))?;
    match encoder.kind {
        EncoderKind::Scores(activation) => {
            let activation = if raw { ScoreActivation::Identity } else { activation };
            by_reading(state, encoder, held, pairs, activation).await
        }
        EncoderKind::Embeddings { .. } => by_embeddings(state, encoder, held, pairs).await,
    }
}

async fn by_reading(
    state: &State,
    encoder: &EncoderState,
    held: &Held,
    pairs: Pairs,
    activation: ScoreActivation,
) -> Result<(Vec<f32>, Value), ApiError> {
    let tokenizer = Arc::clone(needed(&encoder.tokenizer, pairs.fields[1])?);
    let (field, count) = (pairs.fields[1], pairs.texts[1].len());
    let name = place(field, count);
    let (room, longest, bytes) = (encoder.room, encoder.longest, pairs.longest());
    let read = move |is_wanted: Wanted<'_>| {
        let names = [0, 1].map(|side| place(pairs.fields[side], pairs.texts[side].len()));
        let bad = |side: usize, i: usize| {
            let name = names[side](i);
            move |error| ApiError::field(&name, error)
        };
        // One that goes with every other is read once.
        let mut first = None;
        let mut items = Vec::new();
        for [a, b] in pairs.places().take_while(|_| is_wanted()) {
            let text = |side: usize, i: usize| {
                let text = &pairs.texts[side][i];
                let checked = room.check_tokens(&tokenizer, &names[side](i), text, is_wanted);
                checked.map(|()| text)
            };
            let with = match first.take_if(|(place, _)| *place == a) {
                Some((_, first)) => first,
                None => tokenizer.first_of_pairs(text(0, a)?).map_err(bad(0, a))?,
            };
            let fits = |side: usize, i: usize, tokens: usize| match tokens <= longest {
                true => Ok(()),
                false => {
                    let error = ItemError::TooLong { tokens, longest };
                    Err(ApiError::too_long(&names[side](i), error))
                }
            };
            fits(0, a, with.tokens())?;
            let (ids, token_types) = with.with(text(1, b)?).map_err(bad(1, b))?;
            fits(1, b, ids.len())?;
            items.push(TextItem { ids, token_types });
            first = Some((a, with));
        }
        Ok::<_, ApiError>(items)
    };
    let items = state.read_texts(held, bytes, read).await?;
    let read = usage(&items);
    let logits = encode(state, encoder, held, items, &name).await?;
    let score = |logits: Vec<f32>| activation.of(logits.first().copied().unwrap_or(f32::NAN));
    Ok((logits.into_iter().map(score).collect(), read))
}

async fn by_embeddings(
    state: &State,
    encoder: &EncoderState,
    held: &Held,
    pairs: Pairs,
) -> Result<(Vec<f32>, Value), ApiError> {
    let firsts = pairs.texts[0].len();
    let places: Vec<_> = pairs.places().collect();
    let names = [0, 1].map(|side| place(pairs.fields[side], pairs.texts[side].len()));
    let tokenizer = Arc::clone(needed(&encoder.tokenizer, pairs.fields[0])?);
    let (room, bytes) = (encoder.room, pairs.longest());
    let read = move |is_wanted: Wanted<'_>| {
        let names = [0, 1].map(|side| place(pairs.fields[side], pairs.texts[side].len()));
        let texts = pairs.texts.iter().zip(&names);
        let texts =
            texts.flat_map(|(texts, name)| texts.iter().enumerate().map(move |t| (t, name)));
        let item = |((i, text), name): ((usize, &String), &dyn Fn(usize) -> String)| {
            let ids = room.encode(&tokenizer, &name(i), (text, true), is_wanted)?;
            Ok(TextItem { ids, token_types: Vec::new() })
        };
        let wanted = texts.take_while(|_| is_wanted());
        wanted.map(|(text, name)| item((text, name))).collect::<Result<Vec<_>, ApiError>>()
    };
    let items = state.read_texts(held, bytes, read).await?;
    let read = usage(&items);
    let name = |i: usize| if i < firsts { names[0](i) } else { names[1](i - firsts) };
    let vectors = encode(state, encoder, held, items, &name).await?;
    let (first, second) = vectors.split_at(firsts);
    Ok((places.into_iter().map(|[a, b]| cosine(&first[a], &second[b])).collect(), read))
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The cosine of the angle between two vectors; 0 where one is all zeros.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { (dot(a, b) / lengths) as f32 }
}

/// Divides a vector by its Euclidean norm, unless that is 0.
pub(super) fn normalize(vector: &mut [f32]) {
    let norm = dot(vector, vector).sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_compared_by_their_angle() {
        assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        assert_eq!(cosine(&[1.0], &[-2.0]), -1.0);
        assert_eq!(cosine(&[0.0], &[1.0]), 0.0);
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        normalize(&mut [0.0]);
    }
}
