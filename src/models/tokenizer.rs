//! Text to token ids and back, by the `tokenizer.json` of a model folder.

mod contained;
mod pairs;
mod stream;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use self::contained::{check_json, contained};

pub use self::pairs::FirstOfPairs;
pub use self::stream::TextStream;
pub use self::vocabulary::Vocabulary;
use super::files::{ReadError, read_bounded};

/// Bytes that a `tokenizer.json` may have; the largest have about 40 MB.
const LARGEST_FILE: u64 = 256 << 20;

/// Why text cannot be turned into token ids or back. Variants about the file name it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("{}: {source}; give token ids instead of text if there is no tokenizer", file.display())]
    Io {
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is far larger than any tokenizer.
    #[error("{}: {bytes} bytes, but a tokenizer has at most {limit}", file.display())]
    TooLarge {
        file: PathBuf,
        bytes: u64,
        /// The largest length that is read.
        limit: u64,
    },
    /// The file is not a tokenizer.
    #[error("{}: not a tokenizer: {source}", file.display())]
    Invalid {
        file: PathBuf,
        /// What the `tokenizers` crate said.
        source: tokenizers::Error,
    },
    /// The tokenizer has a token that the model does not know, and that nobody added to it.
    #[error(
        "{}: token {token:?} has id {id}, but `vocab_size` of config.json is {vocab_size}: the \
         tokenizer belongs to another model",
        file.display()
    )]
    DoesNotFit {
        file: PathBuf,
        /// The token with the highest id, shortened.
        token: String,
        id: u32,
        /// Number of ids that the model knows.
        vocab_size: usize,
    },
    /// A text became no token at all.
    #[error("the prompt {prompt:?} has no tokens; a prompt needs at least one")]
    EmptyPrompt { prompt: String },
    /// Text came to a model whose folder has no tokenizer.
    #[error("the model folder has no tokenizer.json; give token ids instead of text")]
    NoTokenizer,
    /// A list of token ids is empty.
    #[error("the list of token ids is empty; at least one is needed")]
    NoIds,
    /// A token id is not one of the model's.
    #[error("token id {id} at place {place} is out of range: `vocab_size` is {vocab_size}")]
    IdOutOfRange {
        id: u32,
        /// Its place in the list, from 0.
        place: usize,
        /// Number of ids that the model knows.
        vocab_size: usize,
    },
    /// A text could not be turned into ids.
    #[error("cannot encode the prompt: {source}")]
    Encode {
        /// What the `tokenizers` crate said.
        source: tokenizers::Error,
    },
    /// Ids could not be turned into text.
    #[error("cannot decode token ids: {source}")]
    Decode {
        /// What the `tokenizers` crate said.
        source: tokenizers::Error,
    },
}

/// The tokenizer of a model with `vocab_size` token ids.
#[derive(Debug, Clone)]
pub struct TextTokenizer {
    inner: tokenizers::Tokenizer,
    vocab_size: usize,
    /// Made when it is first asked for.
    vocabulary: OnceLock<Vocabulary>,
    /// Whether it is enough for texts; found when the first one is asked for.
    makes_texts: OnceLock<bool>,
}

impl TextTokenizer {
    /// Reads `tokenizer.json` of `folder`, for a model with `vocab_size` token ids.
    ///
    /// Truncation and padding that the file asks for are switched off: they are meant for training
    /// batches, and would shorten a prompt without a word.
    ///
    /// # Errors
    /// [`TokenizerError::Io`], [`TokenizerError::TooLarge`], [`TokenizerError::Invalid`], or
    /// [`TokenizerError::DoesNotFit`] if a token's id is `vocab_size` or more. Fewer tokens than
    /// `vocab_size` are fine: models round it up. So are added tokens above it, with a warning in the
    /// log: whoever tunes a model may add one to pad by and leave the embedding alone. A prompt with
    /// such a token is refused, and the model gives none.
    pub fn load(folder: &Path, vocab_size: usize) -> Result<Self, TokenizerError> {
        let file = folder.join("tokenizer.json");
        let text = read_bounded(&file, LARGEST_FILE).map_err(|error| match error {
            ReadError::Io(source) => TokenizerError::Io { file: file.clone(), source },
            ReadError::TooLarge { bytes } => {
                TokenizerError::TooLarge { file: file.clone(), bytes, limit: LARGEST_FILE }
            }
        })?;
        Self::parse(&text, vocab_size, &file)
    }

    /// Reads the text of a `tokenizer.json`, as [`TextTokenizer::load`] does; `file` is only named
    /// in errors.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`] or [`TokenizerError::DoesNotFit`].
    pub fn parse(text: &[u8], vocab_size: usize, file: &Path) -> Result<Self, TokenizerError> {
        let invalid = |source| TokenizerError::Invalid { file: file.to_path_buf(), source };
        check_json(text).map_err(invalid)?;
        let mut inner = contained(|| tokenizers::Tokenizer::from_bytes(text)).map_err(invalid)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(invalid)?;
        let shortened = |token: String| token.chars().take(40).collect::<String>();
        let beyond = |id: u32| id as usize >= vocab_size;
        let added = inner.get_added_tokens_decoder();
        let own = inner.get_vocab(false).into_iter().filter(|(_, id)| !added.contains_key(id));
        if let Some((token, id)) = own.max_by_key(|(_, id)| *id).filter(|(_, id)| beyond(*id)) {
            let (file, token) = (file.to_path_buf(), shortened(token));
            return Err(TokenizerError::DoesNotFit { file, token, id, vocab_size });
        }
        let added = added.into_iter().filter(|(id, _)| beyond(*id));
        if let Some((id, token)) = added.min_by_key(|(id, _)| *id) {
            let (file, token) = (file.display(), shortened(token.content));
            tracing::warn!(
                "{file}: the added token {token:?} has id {id}, but `vocab_size` of config.json is \
                 {vocab_size}: a prompt with it is refused"
            );
        }
        let (vocabulary, makes_texts) = (OnceLock::new(), OnceLock::new());
        Ok(Self { inner, vocab_size, vocabulary, makes_texts })
    }

    /// The token ids of a prompt, with the special tokens that the tokenizer's own post-processor
    /// adds and no others.
    ///
    /// # Errors
    /// [`TokenizerError::EmptyPrompt`] if there are none, [`TokenizerError::Encode`] if the
    /// tokenizer fails.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(prompt, true)
    }

    /// The token ids of a text that goes on from others: without special tokens.
    ///
    /// # Errors
    /// As for [`Self::encode`].
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// As [`Self::encode`]; `special` is whether the post-processor's special tokens are added.
    ///
    /// # Errors
    /// As for [`Self::encode`].
    pub fn encode_with(&self, prompt: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = contained(|| self.inner.encode(prompt, special))
            .map_err(|source| TokenizerError::Encode { source })?;
        let ids = encoding.get_ids();
        if ids.is_empty() {
            return Err(TokenizerError::EmptyPrompt { prompt: prompt.chars().take(80).collect() });
        }
        check_token_ids(ids, self.vocab_size)?;
        Ok(ids.to_vec())
    }

    /// The text of token ids, without special tokens. An id that the model knows and the tokenizer
    /// does not has no text.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`] for an id that the model does not know,
    /// [`TokenizerError::Decode`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, false)
    }

    /// As [`Self::decode`]; `special` is whether special tokens have text.
    ///
    /// # Errors
    /// As for [`Self::decode`].
    pub fn decode_with(&self, ids: &[u32], special: bool) -> Result<String, TokenizerError> {
        check_range(ids, self.vocab_size)?;
        if *self.makes_texts.get_or_init(|| Vocabulary::makes_texts_of(&self.inner)) {
            return Ok(self.shared_vocabulary().text(ids, special));
        }
        contained(|| self.inner.decode(ids, !special))
            .map_err(|source| TokenizerError::Decode { source })
    }

    /// What each id stands for, as bytes.
    pub fn vocabulary(&self) -> Vocabulary {
        self.shared_vocabulary().clone()
    }

    fn shared_vocabulary(&self) -> &Vocabulary {
        self.vocabulary.get_or_init(|| Vocabulary::of(&self.inner, self.vocab_size))
    }
}

/// Checks that there is at least one token id and that a model with `vocab_size` knows each.
///
/// # Errors
/// [`TokenizerError::NoIds`] or [`TokenizerError::IdOutOfRange`].
pub fn check_token_ids(ids: &[u32], vocab_size: usize) -> Result<(), TokenizerError> {
    if ids.is_empty() {
        return Err(TokenizerError::NoIds);
    }
    check_range(ids, vocab_size)
}

fn check_range(ids: &[u32], vocab_size: usize) -> Result<(), TokenizerError> {
    match ids.iter().position(|id| *id as usize >= vocab_size) {
        Some(place) => Err(TokenizerError::IdOutOfRange { id: ids[place], place, vocab_size }),
        None => Ok(()),
    }
}
