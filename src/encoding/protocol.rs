//! What a model says of itself so that its items can be packed into steps.

use crate::models::TokenizerError;
use crate::models::encoder::{OutputRows, Values};
use crate::session::SessionError;
use std::sync::Arc;

/// Why an item has no outputs. Others of the same call have theirs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ItemError {
    /// It has no tokens, or one that the model does not know, or can't be encoded.
    #[error(transparent)]
    Tokens(#[from] TokenizerError),
    /// The model has no positions for it.
    #[error("{tokens} tokens, but the model reads at most {longest}; cut the text")]
    TooLong { tokens: usize, longest: usize },
    /// No step is large enough.
    #[error(
        "{rows} rows, but a step has at most {max_num_tokens} (max_num_tokens); raise it or give a \
         smaller item"
    )]
    LargerThanAStep { rows: u64, max_num_tokens: u64 },
    /// It is not what the model takes.
    #[error("{reason}")]
    Invalid { reason: String },
    /// The step that it was in failed.
    #[error("the step failed: {0}")]
    Step(Arc<SessionError>),
}

/// A model that encodes items, each as a whole.
pub trait ItemEncoder {
    /// What is encoded.
    type Item;

    /// The rows that an item brings to a step, in the unit of the budgets; at least 1.
    ///
    /// # Errors
    /// When the model can't take it.
    fn rows(&self, item: &Self::Item) -> Result<u64, ItemError>;

    /// Every input of a step of these items, row-major, in the order of the items.
    fn fill(&self, items: &[&Self::Item]) -> Vec<(&'static str, Values)>;

    /// The outputs of the graph, in its order.
    fn outputs(&self) -> Vec<OutputRows>;

    /// Puts the outputs of an item into the order that its owner expects.
    fn assemble(&self, item: &Self::Item, outputs: &mut [Vec<f32>]) {
        let _ = (item, outputs);
    }
}
