//! What can be wrong with a configuration.

use super::layers::Source;
use crate::words::sizes::SizeError;

/// Why a configuration is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration {file}: {reason}")]
    Read { file: String, reason: String },
    /// The file is not TOML.
    #[error("{file}: {reason}")]
    Syntax {
        file: String,
        /// What the parser says, with the line.
        reason: String,
    },
    /// A key that does not exist.
    #[error("{from}: there is no key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        from: Source,
        key: String,
        /// The existing key that is most like it.
        nearest: &'static str,
    },
    /// A key that is called something else now.
    #[error("{from}: there is no key `{key}` any more; it is called `{now}`: write that instead")]
    RenamedKey { from: Source, key: String, now: &'static str },
    /// A setting of another server, for which there is something else here.
    #[error("{from}: there is no key `{key}` here; {answer}")]
    TheirKey { from: Source, key: String, answer: &'static str },
    /// A key that stands twice in a file, once by another server's name for it.
    #[error("{from}: `{key}` is `{known}`, which is set already; keep one")]
    Twice {
        from: Source,
        /// What is written there.
        key: String,
        /// The key that it stands for.
        known: &'static str,
    },
    /// A value that its key can't have.
    #[error("{from}: {key} can't be {value}: {reason}")]
    Value { from: Source, key: String, value: String, reason: String },
    /// A size list that does not do.
    #[error(transparent)]
    Sizes(#[from] SizeError),
    /// A bound out of its range.
    #[error("{key} = {value} is out of range: it must be from 1 to {most}")]
    Range {
        key: &'static str,
        value: u64,
        /// The largest that is possible.
        most: u64,
    },
    /// A share out of its range.
    #[error("{key} = {value} is out of range: it must be above 0 and at most 1")]
    Share { key: &'static str, value: f64 },
    /// Two keys that contradict each other.
    #[error("{key} = {value} does not go with {other}; {remedy}")]
    Conflict {
        key: &'static str,
        value: String,
        /// The other key and its value.
        other: String,
        remedy: &'static str,
    },
    /// Any of these, of a key that a file or a flag has set.
    #[error("{from}: {wrong}")]
    Of { from: Source, wrong: Box<ConfigError> },
    /// All that is wrong with a file.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<ConfigError>),
}

impl ConfigError {
    /// The key whose value does not go with the bounds or with another; `None` of what a layer refuses by
    /// itself.
    pub(super) fn key_out_of_place(&self) -> Option<&'static str> {
        match self {
            Self::Sizes(error) => Some(error.list()),
            Self::Range { key, .. } | Self::Share { key, .. } | Self::Conflict { key, .. } => {
                Some(key)
            }
            _ => None,
        }
    }

    /// One error of as many as there are; `None` where there is none.
    pub(super) fn of_all(mut wrong: Vec<Self>) -> Option<Self> {
        match wrong.len() {
            0 | 1 => wrong.pop(),
            _ => Some(Self::Several(wrong)),
        }
    }
}

/// What a configuration allows but hardly anybody wants.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ConfigWarning {
    /// Steps between the largest size and the bound do not replay.
    #[error(
        "steps of {first} to {bound} {what} are launched, not replayed: the largest of {list} is \
         below {bound_name} = {bound}; add {bound} to {list}, lower {bound_name}, or set \
         short_size_lists = \"extend\""
    )]
    DoesNotReach {
        list: &'static str,
        what: &'static str,
        /// The first count that has no size.
        first: u64,
        bound_name: &'static str,
        bound: u64,
    },
    /// A size that no step runs at.
    #[error("no step can use size {size} of {list}: {reason}; drop it")]
    Unreachable { list: &'static str, size: u64, reason: String },
    /// A size of which something is said and that there is not.
    #[error("{list} has {size}, and no step runs at {size} tokens: did you mean {nearest}?")]
    NoSuchSize {
        list: &'static str,
        size: u64,
        /// The size that is nearest.
        nearest: u64,
    },
    /// What padding costs is measured on graphs that are not there yet.
    #[error(
        "measure_padding measures nothing at start with capture = {capture}: costs are measured of graphs \
         that are captured, when the graph mode is set later; set it then, or use capture = \"startup\""
    )]
    NothingToMeasure { capture: &'static str },
    /// A graph mode without effect.
    #[error("graph_mode = {mode} has no effect at level = {level}; use level = \"piecewise\"")]
    ModeWithoutLevel { mode: &'static str, level: String },
}
