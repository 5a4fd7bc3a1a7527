//! What becomes of requests.

use crate::engine::{Engine, EngineError, TokenLogprobs};
use crate::words::RequestId;
use crate::words::{FinishReason, Usage};
use std::sync::Arc;

/// What becomes of a request. Either [`Self::Finished`] or [`Self::Failed`] is the last; a sink that
/// is dropped without one belongs to a request that was cancelled, or to a thread that has ended.
#[derive(Clone, Debug)]
pub enum Update {
    /// The engine has it: what it asks for is in order.
    Accepted {
        /// What the engine calls it, in logs and metrics.
        request: RequestId,
    },
    /// It was sent back to wait, since the KV pool was full: its ids are computed again later.
    Preempted,
    /// A token of the prompt, from the second on and in their order, where the request asks for them.
    PromptToken {
        /// The token's number in the vocabulary.
        id: u32,
        /// How likely it was after those before it.
        logprobs: Box<TokenLogprobs>,
    },
    /// What the model wrote next.
    Token {
        /// The token's number in the vocabulary.
        id: u32,
        /// How likely it was, where the request asks for it.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The last that a request is told.
    Finished {
        /// Whether the model ended it, a bound or a failure.
        reason: FinishReason,
        /// What went wrong, where the reason is that something did.
        message: Option<Box<str>>,
        /// What it took.
        usage: Usage,
    },
    /// An end without an answer.
    Failed(Failure),
}

/// Why a request ended without an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// What it asks for is not possible.
    #[error(transparent)]
    Refused(Arc<EngineError>),
    /// The engine failed, for this request or as a whole.
    #[error("the engine failed: {0}; the request can be tried again")]
    Engine(Arc<EngineError>),
    /// The engine was put to sleep, and was not to keep it.
    #[error("the engine was put to sleep before the request ended; try again once it is awake")]
    Asleep,
    /// The thread ended before the request did.
    #[error("the engine was stopped before the request ended")]
    Stopped,
}

/// Takes what becomes of a request, on the engine's thread: it must not wait for anything.
pub type Sink = Box<dyn FnMut(Update) + Send>;

/// Looks at the engine on its thread: it must not wait for anything either.
pub type Watcher = Box<dyn FnMut(&Engine) + Send>;
