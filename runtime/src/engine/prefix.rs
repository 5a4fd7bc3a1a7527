//! What sequences find in the prefix cache, and leave there.

use super::BatchingEngine;
use super::request::RequestId;
use super::sequence::Sequence;
use crate::memory::{PageHash, PagePool};
use piecewise_backend::device::Device;
use piecewise_kernels::attention::PAGE_ROWS;

impl Sequence {
    /// The pages that it could begin with: those that leave it a token to compute. None where it has
    /// pages already, or its whole prompt must be computed.
    pub(super) fn prefix(&mut self) -> &[PageHash] {
        let is_told_of = self.controls.prompt_logprobs.is_some();
        if !self.shares || is_told_of || !self.table.pages().is_empty() {
            return &[];
        }
        self.hash_pages(self.ids.len().saturating_sub(1) / PAGE_ROWS as usize)
    }

    /// Begins with pages that the prefix cache holds.
    pub(super) fn take_prefix(&mut self, pool: &mut PagePool, pages: usize) {
        self.published = self.table.share(pool, &self.hashes[..pages]);
        self.computed = self.published as u64 * PAGE_ROWS;
    }

    /// Lets the prefix cache have the pages that have become full, computed and known.
    pub(super) fn publish(&mut self, pool: &mut PagePool) {
        let rows = self.ids.len().min(self.computed as usize);
        let (from, to) = (self.published, rows / PAGE_ROWS as usize);
        if to <= from || !self.shares {
            return;
        }
        self.hash_pages(to);
        let Self { ids, table, hashes, .. } = self;
        let parent = from.checked_sub(1).map(|last| hashes[last]);
        let ids = &ids[from * PAGE_ROWS as usize..to * PAGE_ROWS as usize];
        pool.publish(&table.pages()[from..to], parent, &hashes[from..to], ids);
        self.published = to;
    }

    /// The hashes of the first pages.
    fn hash_pages(&mut self, pages: usize) -> &[PageHash] {
        let known = self.hashes.len();
        for ids in self.ids.chunks_exact(PAGE_ROWS as usize).take(pages).skip(known) {
            self.hashes.push(PageHash::of(self.hashes.last().copied(), ids));
        }
        &self.hashes[..pages]
    }
}

impl<D: Device> BatchingEngine<D> {
    /// Whether a running sequence that goes no later is about to compute the next page that a waiting
    /// one could begin with.
    pub(super) fn awaits_prefix(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let priority = sequence.priority;
        let hashes = sequence.prefix();
        let (found, _) = self.pool.find(hashes);
        let Some(&next) = hashes.get(found) else { return false };
        self.running.iter().filter_map(|other| self.sequences.get(other)).any(|other| {
            let computes = other.published <= found && other.hashes.get(found) == Some(&next);
            computes && other.shares && other.priority <= priority
        })
    }

    /// Counts what the present turn found, when it is first let in.
    pub(super) fn count_prefix(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.cached.is_some() {
            return;
        }
        sequence.cached = Some(sequence.computed);
        sequence.waited = sequence.asked.elapsed();
        if sequence.shares {
            self.prefix_counts.queries += sequence.ids.len() as u64;
            self.prefix_counts.hits += sequence.computed;
        }
    }

    /// Tells the observer what has changed.
    pub(super) fn tell_kv_observer(&mut self) {
        if let Some(observer) = &mut self.watchers.kv {
            self.pool.take_events().iter().for_each(observer);
        }
    }
}
