//! Counting what a store gave and was given.

use super::key::PIECE_KIND;
use super::stored_piece::IMAGE_KIND;
use crate::words::CompileCounts;
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
use std::sync::{Mutex, PoisonError};

/// A store that counts what goes through it. Images are part of pieces and not counted alone.
pub(super) struct CountingStore<'a> {
    inner: &'a dyn Store,
    counts: Mutex<CompileCounts>,
}

impl<'a> CountingStore<'a> {
    pub(super) fn new(inner: &'a dyn Store) -> Self {
        Self { inner, counts: Mutex::default() }
    }

    pub(super) fn counts(&self) -> CompileCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut CompileCounts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn count_compiled(&self, kind: &'static str) {
        self.change(|counts| *counts.compiled.entry(kind).or_default() += 1);
    }

    pub(super) fn count_reused(&self, kind: &'static str) {
        self.change(|counts| *counts.reused.entry(kind).or_default() += 1);
    }

    pub(super) fn count_miss(&self, reason: &'static str) {
        self.change(|counts| *counts.misses.entry(reason).or_default() += 1);
    }
}

/// Whether an entry is one that the target's compiler makes: pieces are counted where it is known
/// whether they fit.
fn is_of_compiler(kind: &str) -> bool {
    kind != PIECE_KIND && kind != IMAGE_KIND
}

impl Store for CountingStore<'_> {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.inner.get(kind, key)?;
        if let Some(bytes) = &found {
            let of_packs = u64::from(self.inner.is_of_pack(kind, key));
            self.change(|counts| {
                counts.bytes_read += bytes.len() as u64;
                counts.from_packs += of_packs;
            });
            if is_of_compiler(kind) {
                self.count_reused(kind);
            }
        }
        Ok(found)
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        if is_of_compiler(entry.kind) {
            self.count_compiled(entry.kind);
        }
        self.inner.put(entry)?;
        self.change(|counts| counts.bytes_written += entry.bytes.len() as u64);
        Ok(())
    }

    fn claim(&self, kind: &'static str, key: Digest) -> Claim {
        let claim = self.inner.claim(kind, key);
        if let Claim::Made = claim {
            self.change(|counts| *counts.awaited.entry(kind).or_default() += 1);
        }
        claim
    }
}
