//! An engine that sleeps: its memory is given back until it is woken, and who asks meanwhile is told so.

use crate::engine::EngineError;
use crate::words::SuspendedWeights;
use std::str::FromStr;

/// What becomes of the requests that are there when an engine is put to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PauseMode {
    /// They stay, and go on once it is woken.
    #[default]
    Keep,
    /// It falls asleep once they have ended.
    Wait,
    /// They end with [`Failure::Asleep`](super::update::Failure::Asleep).
    Abort,
}

impl FromStr for PauseMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "keep" => Ok(Self::Keep),
            "wait" => Ok(Self::Wait),
            "abort" => Ok(Self::Abort),
            _ => Err(format!("`{name}` is no mode; there are keep, wait and abort")),
        }
    }
}

/// Why an engine did not fall asleep or wake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SleepError {
    /// The engine failed at it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It was to fall asleep once its requests had ended.
    #[error("the engine was woken before its requests had ended")]
    Woken,
    /// Nobody is there any more who could.
    #[error("the engine has stopped")]
    Stopped,
}

/// Told once, on the engine's thread, what came of it: it must not wait for anything.
pub type SleepAnswer = Box<dyn FnOnce(Result<(), SleepError>) + Send>;

/// Asks the thread to put its engine to sleep, and says what becomes of weights and requests.
pub(super) struct SleepOrder {
    pub(super) weights: SuspendedWeights,
    pub(super) mode: PauseMode,
    pub(super) answer: SleepAnswer,
}
