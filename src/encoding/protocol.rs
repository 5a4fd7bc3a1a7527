//! What a model says of itself so that its items can be packed into steps.

use crate::models::TokenizerError;
use crate::models::encoder::{OutputRows, Values};
use crate::session::SessionError;
use piecewise_ir::dtype::DType;
use piecewise_runtime::words::out_of_range_advice;
use std::sync::Arc;

/// Why a step has no outputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The step can't be run, or failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Its inputs or outputs are not what the model announced.
    #[error("{0}")]
    Protocol(String),
}

impl StepError {
    /// Whether nothing runs before the device is opened anew.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Session(SessionError::Model(error)) if error.is_lost())
    }

    pub(super) fn of_item(self: &Arc<Self>) -> ItemError {
        match &**self {
            Self::Session(_) => ItemError::Step(Arc::clone(self)),
            Self::Protocol(reason) => ItemError::Protocol { reason: reason.clone() },
        }
    }
}

/// Why an item has no outputs. Others of the same call have theirs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ItemError {
    /// It has no tokens, or one that the model does not know, or can't be encoded.
    #[error(transparent)]
    Tokens(Arc<TokenizerError>),
    /// The model has no positions for it.
    #[error("{tokens} tokens, but the model reads at most {longest}; cut the text")]
    TooLong { tokens: usize, longest: usize },
    /// No step is large enough.
    #[error(
        "{tokens} rows, but a step has at most {max_num_tokens} (max_num_tokens); raise it or give \
         a smaller item"
    )]
    LargerThanAStep { tokens: u64, max_num_tokens: u64 },
    /// No graph takes it, and steps that are launched are errors.
    #[error("no graph takes it ({reason}), and `strict` makes a launched step an error")]
    Strict { reason: &'static str },
    /// It is not what the model takes.
    #[error("{reason}")]
    Invalid { reason: String },
    /// The model contradicts itself: what it brings or gets back is not what it announced.
    #[error("the model breaks the protocol of encoders: {reason}")]
    Protocol { reason: String },
    /// What came of it is NaN or infinite.
    #[error(
        "what the model makes of it in {} holds NaN or infinite numbers; {}",
        computes_in.name(),
        out_of_range_advice(*computes_in)
    )]
    NotFinite { computes_in: DType },
    /// The step that it was in failed.
    #[error("the step failed: {0}")]
    Step(Arc<StepError>),
    /// What happened on one of several paths.
    #[error("on the path `{path}`: {source}")]
    Path { path: Arc<str>, source: Box<ItemError> },
}

impl ItemError {
    /// What it is counted by.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Tokens(_) | Self::Invalid { .. } => "invalid",
            Self::TooLong { .. } => "too_long",
            Self::LargerThanAStep { .. } => "larger_than_a_step",
            Self::Strict { reason } => reason,
            Self::Protocol { .. } => "protocol",
            Self::NotFinite { .. } => "not_finite",
            Self::Step(_) => "step_failed",
            Self::Path { source, .. } => source.reason(),
        }
    }
}

impl From<TokenizerError> for ItemError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokens(Arc::new(error))
    }
}

/// What an item brings to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathSize {
    /// Rows that go in: tokens of a text, patches of an image. Devices are balanced by them.
    pub rows: u64,
    /// Rows that come out, the unit of budgets; 0 of an item that brings nothing to the path.
    pub tokens: u64,
    /// Frames: an image is one, a text has none.
    pub frames: u64,
}

/// How many tokens an item may bring to a path, where it brings any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenRange {
    /// The fewest, a multiple of `multiple_of`.
    pub least: u64,
    /// The largest item; a longer one is refused.
    pub most: u64,
    /// What every number of them is a multiple of.
    pub multiple_of: u64,
}

impl TokenRange {
    /// From 1 to `most`.
    pub const fn up_to(most: u64) -> Self {
        Self { least: 1, most, multiple_of: 1 }
    }

    /// Always `tokens`.
    pub const fn always(tokens: u64) -> Self {
        Self { least: tokens, most: tokens, multiple_of: tokens }
    }
}

/// The outputs of one item, each row-major.
pub type ItemOutputs = Vec<Vec<f32>>;

/// A model that encodes items, each as a whole, over one path or several.
///
/// A path is a graph with budgets of its own. Of the items of a call, those that bring tokens to a
/// path are packed into its steps; which items a step has is the packing's choice, and the model is
/// handed those. A step replays the smallest graph that holds it, or is launched; the model does
/// the same for both, and nothing for a capture: padding and counts of 0 are the graph's own.
///
/// `examples/two_path_encoder.rs` has one with two paths.
pub trait ItemEncoder {
    /// What is encoded: a text, an image or whatever a model reads whole.
    type Item;

    /// What an item brings to each path, in the order of the paths.
    ///
    /// # Errors
    /// When the model can't take it.
    fn sizes(&self, item: &Self::Item) -> Result<Vec<PathSize>, ItemError>;

    /// What an item may bring to a path: default budgets follow from it, and which budgets are
    /// never reached.
    fn range(&self, path: usize) -> TokenRange {
        let _ = path;
        TokenRange::up_to(u64::MAX)
    }

    /// Whether what comes out of a video on this path is chosen by its values, as where similar
    /// frames are dropped: videos are launched then, and only images replay.
    fn prunes_videos(&self, path: usize) -> bool {
        let _ = path;
        false
    }

    /// Every input of a step of these items on a path, row-major, in the order of the items.
    fn fill<'a>(&self, path: usize, items: &[&'a Self::Item]) -> Vec<(&'static str, Values<'a>)>;

    /// The outputs of the graph of a path, in its order.
    fn outputs(&self, path: usize) -> Vec<OutputRows>;

    /// For each token of an item on a path, in its own order, its place among those that the graph
    /// has of it, where those lie otherwise: outputs are handed back in the item's order.
    fn order(&self, path: usize, item: &Self::Item) -> Option<Vec<u32>> {
        let _ = (path, item);
        None
    }

    /// What becomes of the outputs of an item on each path, empty ones of a path that it brings
    /// nothing to; as they are, one path after the other, unless the model says otherwise.
    ///
    /// # Errors
    /// When they do not fit together.
    fn assemble(
        &self,
        item: &Self::Item,
        paths: Vec<ItemOutputs>,
    ) -> Result<ItemOutputs, ItemError> {
        let _ = item;
        Ok(paths.into_iter().flatten().collect())
    }
}
