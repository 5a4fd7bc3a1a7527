//! What can go wrong while requests are served.

use crate::batch::RoleError;
use crate::memory::{PoolFull, RowsError, RowsId};
use crate::words::{FillError, ModelError, RequestId};
use piecewise_backend::device::DeviceError;

/// Why a request is refused or a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum EngineError {
    /// The graph's roles do not fit.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// An input of a step could not be filled.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// The model could not run a step; what it says of the device and of memory is in it.
    #[error(transparent)]
    Model(ModelError),
    /// The device could not do something outside a step.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pool can't hold even one sequence.
    #[error(transparent)]
    Pool(#[from] PoolFull),
    /// No slot for the states of even one sequence.
    #[error("all {slots} slots of the states of role \"sequence.state\" are taken")]
    NoSlot { slots: u64 },
    /// An option beyond what the model was built for.
    #[error("{option} = {value}, but {because}; it must be from 1 to {bound}")]
    Option { option: &'static str, value: u64, because: &'static str, bound: u64 },
    /// No token to start from.
    #[error("the prompt is empty; it needs at least one token, such as the one that begins a text")]
    EmptyPrompt,
    /// No room for a token after the prompt.
    #[error(
        "{length} tokens leave no room in the context: max_seq_len = {bound}, the next token \
         included; shorten the prompt or raise max_seq_len (bounded by the model and the KV pool, \
         see memory_budget)"
    )]
    TooLong {
        /// Tokens of the prompt, with what was kept before it.
        length: usize,
        bound: u64,
    },
    /// An id that the model has not.
    #[error(
        "id {id} at position {position} of the prompt is not below the model's {vocab} ids; does \
         the tokenizer belong to this model?"
    )]
    IdOutOfRange {
        id: u32,
        position: usize,
        /// How many ids the model has.
        vocab: u64,
    },
    /// A parameter of a request out of its range.
    #[error("{parameter} = {value} is out of range; {expected}")]
    Parameter { parameter: &'static str, value: String, expected: &'static str },
    /// Values of a request that do not fit.
    #[error("the values \"{name}\" of the request do not fit: {reason}")]
    Values { name: String, reason: String },
    /// Rows that have no place.
    #[error(
        "the rows {rows} do not fit at position {position} of the prompt: they go past its end, or \
         over others"
    )]
    RowsPlace {
        rows: RowsId,
        /// Of the first of them.
        position: u64,
    },
    /// Rows in the place of tokens.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// No request of this number.
    #[error("there is no request {request}; it was removed, or finished without being kept")]
    UnknownRequest { request: RequestId },
    /// A request that can't be continued.
    #[error("request {request} can't be continued: only one that has finished and was kept can be")]
    NotKept { request: RequestId },
    /// Logits were asked for while requests run.
    #[error("logits of a prompt can't be computed while requests run; step until none do")]
    Busy,
    /// A step could not be made because of one of its requests, which is removed.
    #[error("request {request}: {source}")]
    OfRequest { request: RequestId, source: Box<EngineError> },
    /// A request that no step can be planned for; it is removed.
    #[error(
        "request {request} can't go on: nothing is on its way, and no step can be planned for it; of its \
         {known} ids {computed} are computed, and {pending} were sampled and never read back"
    )]
    Stuck {
        request: RequestId,
        /// Of its prompt and generated.
        known: usize,
        computed: u64,
        pending: u64,
    },
    /// The model returned something that is no id.
    #[error(
        "request {request} sampled {id}, which is none of the model's {vocab} ids; run with \
         checks.poison and checks.compare to find where it comes from"
    )]
    BadSample {
        request: RequestId,
        id: i32,
        /// How many ids the model has.
        vocab: u64,
    },
}

impl From<ModelError> for EngineError {
    /// What fills a step's inputs fails alike, whether before or while the step is submitted.
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Fill(error) => Self::Fill(error),
            error => Self::Model(error),
        }
    }
}

impl EngineError {
    /// Whether the device was lost.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Model(error) => error.is_lost(),
            Self::Device(error) => error.is_lost(),
            _ => false,
        }
    }

    /// Whether nothing works any more in this process: its requests can go on in another.
    pub fn needs_new_process(&self) -> bool {
        match self {
            Self::Model(error) => error.needs_new_process(),
            Self::Device(error) => error.needs_new_process(),
            _ => false,
        }
    }

    /// The one request that it is about, where it is about one of those that are there.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::UnknownRequest { request }
            | Self::NotKept { request }
            | Self::OfRequest { request, .. }
            | Self::Stuck { request, .. }
            | Self::BadSample { request, .. } => Some(*request),
            _ => None,
        }
    }

    /// Whether the device failed at something that it may do another time.
    pub(super) fn is_of_device(&self) -> bool {
        matches!(self, Self::Model(ModelError::Device(_)) | Self::Device(_))
    }
}
