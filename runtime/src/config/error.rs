//! What can be wrong with a configuration.

use super::layers::Source;
use crate::sizes::SizeError;

/// Why a configuration is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration {file}: {reason}")]
    Read {
        /// The file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{file}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// What the parser says, with the line.
        reason: String,
    },
    /// A key that does not exist.
    #[error("{from}: there is no key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// Where it was set.
        from: Source,
        /// The key.
        key: String,
        /// The existing key that is most like it.
        nearest: &'static str,
    },
    /// A value that its key can't have.
    #[error("{from}: {key} can't be {value}: {reason}")]
    Value {
        /// Where it was set.
        from: Source,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Why not.
        reason: String,
    },
    /// A size list that does not do.
    #[error(transparent)]
    Sizes(#[from] SizeError),
    /// A bound out of its range.
    #[error("{key} = {value} is out of range: it must be from 1 to {most}")]
    Range {
        /// The key.
        key: &'static str,
        /// The value.
        value: u64,
        /// The largest that is possible.
        most: u64,
    },
    /// Two keys that contradict each other.
    #[error("{key} = {value} does not go with {other}; {remedy}")]
    Conflict {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The other key and its value.
        other: String,
        /// What to change.
        remedy: &'static str,
    },
}

/// What a configuration allows but hardly anybody wants.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigWarning {
    /// Steps between the largest size and the bound do not replay.
    #[error(
        "steps of {first} to {bound} {what} are launched, not replayed: the largest of {list} is \
         below {bound_name} = {bound}; add {bound} to {list} or lower {bound_name}"
    )]
    DoesNotReach {
        /// The list's key.
        list: &'static str,
        /// What is counted.
        what: &'static str,
        /// The first count that has no size.
        first: u64,
        /// The bound's key.
        bound_name: &'static str,
        /// The bound.
        bound: u64,
    },
    /// A size that no step runs at.
    #[error("no step can use size {size} of {list}: {reason}; drop it")]
    Unreachable {
        /// The list's key.
        list: &'static str,
        /// The size.
        size: u64,
        /// Why.
        reason: String,
    },
    /// A graph mode without effect.
    #[error("graph_mode = {mode} has no effect at level = {level}; use level = \"piecewise\"")]
    ModeWithoutLevel {
        /// The mode.
        mode: &'static str,
        /// The level.
        level: String,
    },
}
