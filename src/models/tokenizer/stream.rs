//! Text from token ids that arrive one by one.

use std::borrow::Borrow;

use super::{TextTokenizer, TokenizerError};

/// What a decoder writes for bytes that are no UTF-8, a character's first half included.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;
/// Ids of a prompt that are decoded as context.
const CONTEXT: usize = 8;
/// Bytes, and so ids, that a character can have.
const LONGEST_CHARACTER: usize = 4;
/// Unprinted ids after which the stream stops waiting for the rest of a character.
const LONGEST_WAIT: usize = 64;

/// Turns token ids into text as they arrive, without ever showing half a character.
///
/// The pieces and the rest that [`TextStream::finish`] gives make up the text of all ids. Text
/// depends on the ids before (a leading space is dropped at the start of a text only), so the stream
/// decodes the last ids again with each new one.
///
/// The `tokenizers` crate's own stream is not used because it holds everything back after a byte
/// that never becomes a character, fails when such a byte changes how its neighbours decode, and
/// cannot be told to give what it holds at the end.
#[derive(Debug)]
pub struct TextStream<T> {
    tokenizer: T,
    /// Whether special tokens have text.
    special: bool,
    /// The ids whose text is still open, after some whose text is out.
    window: Vec<u32>,
    /// How many ids at the front of the window are context: their text is out.
    context: usize,
    /// The part of the window's text that is out.
    printed: String,
}

impl TextTokenizer {
    /// A stream that turns ids into text one by one, as if they followed `prompt_ids`.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`] of `prompt_ids`.
    pub fn stream_after(&self, prompt_ids: &[u32]) -> Result<TextStream<&Self>, TokenizerError> {
        TextStream::after(self, prompt_ids, false)
    }
}

impl<T: Borrow<TextTokenizer>> TextStream<T> {
    /// A stream of the ids that follow `prompt_ids`; `tokenizer` is a reference or an `Arc`.
    /// `special` is whether special tokens have text, as parsers of replies need it.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`] of `prompt_ids`.
    pub fn after(tokenizer: T, prompt_ids: &[u32], special: bool) -> Result<Self, TokenizerError> {
        let decode = |ids| tokenizer.borrow().decode_with(ids, special);
        let mut start = prompt_ids.len().saturating_sub(CONTEXT);
        let mut printed = decode(&prompt_ids[start..])?;
        // A window that begins inside a character would change its meaning when more ids follow.
        for _ in 0..LONGEST_CHARACTER.min(start) {
            if !printed.starts_with(REPLACEMENT) {
                break;
            }
            start -= 1;
            printed = decode(&prompt_ids[start..])?;
        }
        let window = prompt_ids[start..].to_vec();
        printed.truncate(printed.trim_end_matches(REPLACEMENT).len());
        Ok(Self { tokenizer, special, context: window.len(), window, printed })
    }

    fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.tokenizer.borrow().decode_with(ids, self.special)
    }

    /// The text that becomes certain with the next id; empty while a character is incomplete.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`]; the id is then not part of the text.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.window.push(id);
        let text = match self.decode(&self.window) {
            Ok(text) => text,
            Err(error) => {
                self.window.pop();
                return Err(error);
            }
        };
        if text.ends_with(REPLACEMENT) && self.window.len() - self.context <= LONGEST_WAIT {
            let certain = text.trim_end_matches(REPLACEMENT);
            let piece = certain.strip_prefix(self.printed.as_str()).unwrap_or_default().to_owned();
            self.printed.push_str(&piece);
            return Ok(piece);
        }
        let piece = self.unprinted(&text)?;
        self.forget_context(text)?;
        Ok(piece)
    }

    /// The text that was held back: what an incomplete character looks like.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        if self.window.len() == self.context {
            return Ok(String::new());
        }
        let text = self.decode(&self.window)?;
        let rest = self.unprinted(&text)?;
        self.forget_context(text)?;
        Ok(rest)
    }

    /// The part of the window's `text` that is not out.
    fn unprinted(&self, text: &str) -> Result<String, TokenizerError> {
        match text.strip_prefix(self.printed.as_str()) {
            Some(piece) => Ok(piece.to_owned()),
            // A new byte spoilt a character that is already out. What is out stays out.
            None => self.decode(&self.window[self.context..]),
        }
    }

    /// Makes the ids whose text came out last the only context.
    fn forget_context(&mut self, text: String) -> Result<(), TokenizerError> {
        let kept = self.decode(&self.window[self.context..])?;
        // Ids without a text of their own, special tokens say, are no context for what follows.
        if kept.is_empty() || kept.starts_with(REPLACEMENT) {
            self.context = self.window.len();
            self.printed = text;
            if self.context > 4 * LONGEST_WAIT {
                self.window.drain(..self.context - LONGEST_WAIT);
                self.context = self.window.len();
                self.printed = self.decode(&self.window)?;
            }
        } else {
            self.window.drain(..self.context);
            self.context = self.window.len();
            self.printed = kept;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
