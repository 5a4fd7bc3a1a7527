//! What a model says of itself so that its items can be packed into steps.

use crate::models::TokenizerError;
use crate::session::SessionError;
use std::sync::Arc;

/// Why an item has no outputs. Others of the same call have theirs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ItemError {
    /// It has no tokens, or one that the model does not know, or can't be encoded.
    #[error(transparent)]
    Tokens(#[from] TokenizerError),
    /// The model has no positions for it.
    #[error("{tokens} tokens, but the model reads at most {longest}; cut the text")]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// The most.
        longest: usize,
    },
    /// No step is large enough.
    #[error(
        "{rows} rows, but a step has at most {max_num_tokens} (max_num_tokens); raise it or give a \
         smaller item"
    )]
    LargerThanAStep {
        /// Its rows.
        rows: u64,
        /// The most.
        max_num_tokens: u64,
    },
    /// It is not what the model takes.
    #[error("{reason}")]
    Invalid {
        /// What is wrong.
        reason: String,
    },
    /// The step that it was in failed.
    #[error("the step failed: {0}")]
    Step(Arc<SessionError>),
}

/// The values of an input of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum Values {
    /// Of an `i32` input.
    I32(Vec<i32>),
    /// Of an `f32` input.
    F32(Vec<f32>),
}

/// The rows of an output, f32, and which of them are an item's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputRows {
    /// One for each item, of so many elements.
    PerItem(usize),
    /// As many as the item brings, of so many elements each.
    PerRow(usize),
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
