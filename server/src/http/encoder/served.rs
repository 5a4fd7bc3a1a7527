//! An encoder that is loaded, as requests see it.

use super::super::state::Room;
use piecewise::encoding::{EncoderHandle, TextModel};
use piecewise::models::TextTokenizer;
use piecewise::models::encoder::ScoreActivation;
use std::sync::Arc;

/// What an encoder makes of texts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EncoderKind {
    /// A vector of each; its first output.
    Embeddings {
        /// How many elements a vector has, unless it is shortened.
        width: usize,
        /// Whether vectors are divided by their Euclidean norm.
        normalized: bool,
        /// How a vector may be shortened.
        shortened: Matryoshka,
    },
    /// A logit of a pair of texts; its first output, of one element.
    Scores(ScoreActivation),
}

/// To how many of its first elements a vector may be shortened and still mean the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Matryoshka {
    /// The model was not trained for it.
    No,
    /// To any number.
    Any,
    /// To any of these numbers of elements.
    OneOf(Vec<usize>),
}

/// An encoder that is loaded, as clients see it.
#[derive(Debug)]
pub struct ServedEncoder {
    /// `None` takes token ids alone.
    pub tokenizer: Option<Arc<TextTokenizer>>,
    /// The most tokens of a text.
    pub longest: usize,
    /// What it makes of texts.
    pub kind: EncoderKind,
}

/// The encoder with the way to its thread.
#[derive(Debug, derive_more::Deref)]
pub(crate) struct EncoderState {
    pub(crate) handle: EncoderHandle<TextModel>,
    #[deref]
    pub(crate) encoder: ServedEncoder,
    pub(crate) room: Room,
}

impl EncoderState {
    pub(crate) fn new(
        handle: EncoderHandle<TextModel>,
        encoder: ServedEncoder,
        memory: usize,
    ) -> Self {
        let vocabulary = encoder.tokenizer.as_deref().map(TextTokenizer::vocabulary);
        let room = Room::new(encoder.longest as u64, vocabulary.as_ref(), memory);
        Self { handle, encoder, room }
    }
}

impl Matryoshka {
    /// What the `config.json` of a folder says: `matryoshka_dimensions`, or `is_matryoshka`.
    pub fn of(config: &serde_json::Value) -> Self {
        let dimensions = config["matryoshka_dimensions"].as_array();
        let dimensions = dimensions.map(|list| list.iter().filter_map(|n| n.as_u64()));
        match (dimensions, config["is_matryoshka"].as_bool()) {
            (Some(dimensions), _) => Self::OneOf(dimensions.map(|n| n as usize).collect()),
            (None, Some(true)) => Self::Any,
            _ => Self::No,
        }
    }
}
