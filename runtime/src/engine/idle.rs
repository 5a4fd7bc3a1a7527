//! What sequences hold that do not run: kept for later, taken when others need it.

use super::BatchingEngine;
use super::request::RequestId;
use piecewise_backend::device::Device;

impl<D: Device> BatchingEngine<D> {
    /// Takes pages and slot of one sequence that does not run: the conversation idle for longest,
    /// then the request that waits last. Its tokens will be computed again. `but` is the request
    /// that needs the memory, which keeps its own; where a whole prompt is computed beside the
    /// requests, or all memory is given back, none needs it and every sequence may lose its own.
    /// Returns whether there was one to take from.
    pub(super) fn reclaim(&mut self, but: Option<RequestId>) -> bool {
        let Self { kept, waiting, sequences, pool, slots, .. } = self;
        for id in kept.iter().chain(waiting.iter().rev()) {
            let Some(sequence) = sequences.get_mut(id) else { continue };
            if Some(*id) == but || !sequence.holds_memory() {
                continue;
            }
            sequence.release(pool, slots);
            return true;
        }
        false
    }
}
