//! What requests bring to say which ids may come, and what they are told of each.

use piecewise_kernels::sampling::Details;

/// Says which ids may come next in one request, such as those that keep to a grammar. The engine asks
/// before each step that samples for the request, once for each token, however often the request is
/// computed again.
pub trait TokenConstraint: std::fmt::Debug + Send {
    /// Marks the ids that may come next: bit `i % 32` of word `i / 32` is for id `i`. The mask has a
    /// bit for each id of the model, all of them 0 at first.
    ///
    /// # Errors
    /// Why nothing may come next; the request ends.
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String>;

    /// Takes the id that came, unless it is a stop id. Returns whether nothing may follow it: then
    /// the request ends.
    ///
    /// # Errors
    /// Why the id may not come; the request ends without it.
    fn accept(&mut self, id: u32) -> Result<bool, String>;

    /// The same constraint where it is now, for another request that goes on from there.
    fn duplicate(&self) -> Box<dyn TokenConstraint>;
}

impl Clone for Box<dyn TokenConstraint> {
    fn clone(&self) -> Self {
        (**self).duplicate()
    }
}

/// How likely a token was: logarithms of probabilities, by the logits as the model gives them, before
/// temperature, penalties, biases and masks. None is below -9999.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct TokenLogprobs {
    /// Of the id that came.
    pub logprob: f32,
    /// The token's place among all ids by probability; 1 for the likeliest.
    pub rank: u32,
    /// The likeliest ids and theirs, the likeliest first.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    pub(super) fn of(details: Details<'_>) -> Self {
        let top = details.top().collect();
        Self { logprob: details.logprob(), rank: details.rank(), top }
    }
}
