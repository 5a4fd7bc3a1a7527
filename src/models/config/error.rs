//! What can be wrong with a `config.json`.

use std::path::PathBuf;

use serde_json::Value;

/// Why a model folder's configuration cannot be used. Each variant names the file and, where there
/// is one, the field.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; a model folder holds config.json beside its weights", file.display())]
    Io {
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is far larger than any configuration.
    #[error("{}: {bytes} bytes, but a configuration has at most {limit}", file.display())]
    TooLarge {
        file: PathBuf,
        bytes: u64,
        /// The largest length that is read.
        limit: u64,
    },
    /// The file is not JSON.
    #[error("{}: invalid JSON: {source}", file.display())]
    Json {
        file: PathBuf,
        /// Where and why the JSON is invalid.
        source: serde_json::Error,
    },
    /// Nothing says how images are made ready.
    #[error(
        "{} has no preprocessor_config.json, which says how images are made ready; copy it from where \
         the model comes from",
        folder.display()
    )]
    NoProcessor {
        /// The model folder.
        folder: PathBuf,
    },
    /// A field is missing (or null) and has no default.
    #[error("{}: `{field}` is missing", file.display())]
    Missing {
        file: PathBuf,
        /// The field, as a path from the root of the file.
        field: String,
    },
    /// A field holds another kind of value than it must.
    #[error("{}: `{field}` is {found}, expected {expected}", file.display())]
    Type {
        file: PathBuf,
        /// The field, as a path from the root of the file.
        field: String,
        found: String,
        expected: &'static str,
    },
    /// A field holds a value that makes no sense, alone or beside another field.
    #[error("{}: `{field}` is {value}: {reason}", file.display())]
    Value {
        file: PathBuf,
        /// The field, as a path from the root of the file.
        field: String,
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A field asks for something that the ready families do not compute.
    #[error("{}: `{field}` is {value}, which is not supported: {supported}", file.display())]
    Unsupported {
        file: PathBuf,
        /// The field, as a path from the root of the file.
        field: String,
        value: String,
        /// What would be accepted in its place.
        supported: String,
    },
    /// Two fields that say the same thing disagree.
    #[error(
        "{}: `{field}` is {value} but `{other}` is {other_value}; remove one of them",
        file.display()
    )]
    Conflict {
        file: PathBuf,
        field: String,
        value: String,
        other: String,
        /// What the other holds, shortened.
        other_value: String,
    },
}

impl ConfigError {
    /// The field at fault, as a path from the root of its file, where one field is.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Io { .. }
            | Self::TooLarge { .. }
            | Self::Json { .. }
            | Self::NoProcessor { .. } => None,
            Self::Missing { field, .. }
            | Self::Type { field, .. }
            | Self::Value { field, .. }
            | Self::Unsupported { field, .. }
            | Self::Conflict { field, .. } => Some(field),
        }
    }
}

/// A JSON value as an error shows it: whole if short, else its beginning.
pub(super) fn shown(value: &Value) -> String {
    shorter(&value.to_string())
}

/// A text, or the beginning of a long one.
pub(super) fn shorter(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
