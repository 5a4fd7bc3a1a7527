//! What `generation_config.json` of a model folder says about sampling.

use std::path::{Path, PathBuf};

use piecewise::models::files::{ReadError, read_text};
use serde_json::{Map, Value};

const LARGEST_FILE: u64 = 1 << 20;

/// Defaults for what a request leaves out; none where a model says nothing. Ids that end a reply are
/// in the model's own configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// How much chance there is: 0 is none.
    pub temperature: Option<f32>,
    /// The share of probability that the likeliest ids make up, from 0 (the likeliest alone) to 1.
    pub top_p: Option<f32>,
    /// How many of the likeliest ids are looked at.
    pub top_k: Option<u32>,
    /// The least probability, as a share of the likeliest id's.
    pub min_p: Option<f32>,
    /// By what logits of ids that have been are divided, above 0.
    pub repetition_penalty: Option<f32>,
    /// The most ids of a reply.
    pub max_new_tokens: Option<u64>,
}

/// Why the file can't be used; it names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum GenerationDefaultsError {
    /// The file can't be read.
    #[error("{}: {source}", file.display())]
    Io {
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is no JSON object.
    #[error("{}: not a JSON object: {message}", file.display())]
    Json { file: PathBuf, message: String },
    /// A field has a value that it can't have.
    #[error(
        "{}: `{field}` is {value}, but {expected}; mend the file, or go without its defaults",
        file.display()
    )]
    Field { file: PathBuf, field: &'static str, value: String, expected: &'static str },
}

impl GenerationDefaults {
    /// Reads `generation_config.json` of `folder`; a folder without one has no defaults.
    /// Sampling that the file switches off (`do_sample` false) is a temperature of 0.
    ///
    /// # Errors
    /// When the file can't be read or has values that can't be used.
    pub fn load(folder: &Path) -> Result<Self, GenerationDefaultsError> {
        let file = folder.join("generation_config.json");
        let text = match read_text(&file, LARGEST_FILE) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(Self::default()),
            Err(ReadError::Io(source)) => return Err(GenerationDefaultsError::Io { file, source }),
            Err(ReadError::TooLarge { bytes }) => {
                let message = format!("{bytes} bytes are too many");
                return Err(GenerationDefaultsError::Json { file, message });
            }
        };
        Self::parse(&text, &file)
    }

    /// Reads the text of a `generation_config.json`; `file` is only named in errors.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(text: &str, file: &Path) -> Result<Self, GenerationDefaultsError> {
        let fields: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
            let (file, message) = (file.to_owned(), error.to_string());
            GenerationDefaultsError::Json { file, message }
        })?;
        let reader = Reader { fields, file };
        let mut temperature =
            reader.number("temperature", "it must be 0 or above", |v| v >= 0.0 && v.is_finite())?;
        if reader.fields.get("do_sample") == Some(&Value::Bool(false)) {
            temperature = Some(0.0);
        }
        Ok(Self {
            temperature,
            top_p: reader
                .number("top_p", "it must be from 0 to 1", |v| (0.0..=1.0).contains(&v))?,
            top_k: reader.optional("top_k", "it must be a whole number, 0 or above")?,
            min_p: reader
                .number("min_p", "it must be from 0 to 1", |v| (0.0..=1.0).contains(&v))?,
            repetition_penalty: reader
                .number("repetition_penalty", "it must be above 0", |v| v > 0.0 && v.is_finite())?,
            max_new_tokens: reader
                .optional("max_new_tokens", "it must be a whole number, 1 or above")?
                .filter(|most| *most > 0),
        })
    }
}

struct Reader<'a> {
    fields: Map<String, Value>,
    file: &'a Path,
}

impl Reader<'_> {
    fn wrong(&self, field: &'static str, expected: &'static str) -> GenerationDefaultsError {
        let value = self.fields.get(field).map(Value::to_string).unwrap_or_default();
        GenerationDefaultsError::Field { file: self.file.to_owned(), field, value, expected }
    }

    fn optional<T: serde::de::DeserializeOwned>(
        &self,
        field: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, GenerationDefaultsError> {
        let value = self.fields.get(field).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|_| self.wrong(field, expected))
    }

    fn number(
        &self,
        field: &'static str,
        expected: &'static str,
        is_fine: impl Fn(f32) -> bool,
    ) -> Result<Option<f32>, GenerationDefaultsError> {
        match self.optional(field, expected)? {
            Some(value) if !is_fine(value) => Err(self.wrong(field, expected)),
            value => Ok(value),
        }
    }
}
