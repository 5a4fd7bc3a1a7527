//! What sequences hold that do not run: kept for later, taken when others need it.

use super::BatchingEngine;
use super::request::RequestId;
use piecewise_backend::device::Device;

impl<D: Device> BatchingEngine<D> {
    /// Takes pages and slot of one sequence that does not run: the conversation idle for longest,
    /// then the request that waits last. Its tokens will be computed again. Returns whether
    /// there was one.
    pub(super) fn reclaim_idle(&mut self, but: RequestId) -> bool {
        self.reclaim(Some(but))
    }

    /// [`Self::reclaim_idle`] for memory that no request asks for, such as a pass through the engine
    /// that is none: any sequence that does not run may have to give its own.
    pub(super) fn reclaim_any(&mut self) -> bool {
        self.reclaim(None)
    }

    fn reclaim(&mut self, but: Option<RequestId>) -> bool {
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
