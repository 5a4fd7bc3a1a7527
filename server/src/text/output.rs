//! The text of a reply as its token ids arrive.

use std::sync::Arc;

use piecewise::models::{TextStream, TextTokenizer, TokenizerError};

use super::stop::{StopFilter, StopStrings};

/// What an id added to a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// The text that is now certain.
    pub text: String,
    /// Characters of the text before what the id stands for.
    pub offset: usize,
    /// The stop string that ended the text with this piece.
    pub stop: Option<String>,
}

/// The text of a reply: whole characters, up to a stop string.
///
/// Pieces make up the text. What may still turn out to be part of a character or of a stop string
/// is held back.
#[derive(Debug)]
pub struct OutputText {
    stream: TextStream<Arc<TextTokenizer>>,
    filter: StopFilter,
    /// Characters that the stream has given.
    characters: usize,
}

impl OutputText {
    /// The text of what follows `prompt_ids`. `special` is whether special tokens have text, which
    /// some parsers of replies ask for.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`] of `prompt_ids`.
    pub fn new(
        tokenizer: Arc<TextTokenizer>,
        prompt_ids: &[u32],
        stops: StopStrings,
        special: bool,
    ) -> Result<Self, TokenizerError> {
        let stream = TextStream::after(tokenizer, prompt_ids, special)?;
        Ok(Self { stream, filter: StopFilter::new(stops), characters: 0 })
    }

    /// Whether the text has what ended it.
    pub(crate) fn keeps_stops(&self) -> bool {
        self.filter.keeps_stops()
    }

    /// Takes the next id. After a stop string, what follows has no text.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`]; the id is then not part of the text.
    pub fn push(&mut self, id: u32) -> Result<TextPiece, TokenizerError> {
        let text = self.stream.push(id)?;
        Ok(self.filtered(text))
    }

    /// What was held back, once the last id has come.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`].
    pub fn finish(&mut self) -> Result<TextPiece, TokenizerError> {
        let text = self.stream.finish()?;
        let mut piece = self.filtered(text);
        piece.text.push_str(&self.filter.finish());
        Ok(piece)
    }

    fn filtered(&mut self, text: String) -> TextPiece {
        let offset = self.characters;
        self.characters += text.chars().count();
        if self.filter.lets_all_through() {
            return TextPiece { text, offset, stop: None };
        }
        let (text, stop) = self.filter.push(&text);
        TextPiece { text, offset, stop }
    }
}
