//! Who goes before whom: the lower priority first, and of equal ones who came first.

use super::BatchingEngine;
use super::request::RequestId;
use piecewise_backend::device::Device;

impl<D: Device> BatchingEngine<D> {
    pub(super) fn priority(&self, id: RequestId) -> i32 {
        self.sequences.get(&id).map_or(0, |sequence| sequence.priority)
    }

    /// Lets a request wait behind all of its priority.
    pub(super) fn wait_last(&mut self, id: RequestId) {
        let priority = self.priority(id);
        let at = self.waiting.partition_point(|&other| self.priority(other) <= priority);
        self.waiting.insert(at, id);
    }

    /// Lets a request that ran wait before all of its priority.
    pub(super) fn wait_first(&mut self, id: RequestId) {
        let priority = self.priority(id);
        let at = self.waiting.partition_point(|&other| self.priority(other) < priority);
        self.waiting.insert(at, id);
    }

    /// Lets a request run, behind all of its priority.
    pub(super) fn begin_run(&mut self, id: RequestId) {
        let priority = self.priority(id);
        let at = self.running.partition_point(|&other| self.priority(other) <= priority);
        self.running.insert(at, id);
    }
}
